int psm_rank_main(int argc, char **argv); /* rank.h */

int main(int argc, char **argv)
{
    return psm_rank_main(argc, argv);
}
