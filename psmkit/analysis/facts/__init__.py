"""Who is who, what was opened, asked and answered, in which order: computed once, without a judgement."""
