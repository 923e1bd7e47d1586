"""What several rules conclude alike: how far each rank came, what is proven, which errors follow from which, who blames whom."""
