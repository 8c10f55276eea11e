# One run: FILES ROOT N NB P Q
. "$1/shared.sh"
root=$2 n=$3 nb=$4 p=$5 q=$6
for prefix in "$root/usr"; do
    # Programs compiled for /usr search their parts there by default.
    if [ -x "$prefix/bin/hpcc" ]; then
        export OPAL_PREFIX="$prefix"
        for pmix in "$prefix"/lib/*-linux-gnu*/pmix2; do export PMIX_INSTALL_PREFIX="$pmix"; done
    fi
done
# Open MPI on one machine: shared memory alone, files in this directory, no search for fast networks.
export OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 OMPI_MCA_btl_vader_backing_directory="$PWD"
export OMPI_MCA_orte_tmpdir_base="$PWD" OMPI_MCA_plm=isolated OMPI_MCA_pmix_pcompress_base_silence_warning=1
export OPENBLAS_NUM_THREADS=1
# HPL's input file; hpcc also uses its sizes for the other tests.
cat >hpccinf.txt <<INPUT
HPLinpack benchmark input file
pagelab
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
$n           Ns
1            # of NBs
$nb          NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
$p           Ps
$q           Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0            Number of additional problem sizes for PTRANS
1200         values of N
0            number of additional blocking sizes for PTRANS
40           values of NB
INPUT
processes=$((p * q))
if [ "$processes" = 1 ]; then
    $tied hpcc >hpcc.log 2>&1 || fail "hpcc failed: $(tail -5 hpcc.log)"
else
    mpirun=$(command -v mpirun.openmpi || command -v mpirun) || fail "there is no mpirun"
    unset OMPI_MCA_plm
    $tied "$mpirun" --oversubscribe --bind-to none -np "$processes" hpcc >hpcc.log 2>&1 ||
        fail "hpcc failed: $(tail -5 hpcc.log)"
fi
[ -f hpccoutf.txt ] || fail "hpcc wrote no result: $(tail -5 hpcc.log)"
sed -n '/^Begin of HPL section/,/^End of HPL section/p' hpccoutf.txt >hpl.log
grep -q '^||Ax-b||.*PASSED$' hpl.log || wrong "HPL's residual test did not pass: $(grep '^||Ax-b||' hpl.log)"
awk '/^W[RC]/ { printf "HPL time: %s s\nHPL rate: %s GFLOP/s\n", $6, $7 }' hpl.log
