# One run: FILES INPUT THREADS
. "$1/shared.sh"
input=$2 threads=$3
program=$(ls "$PARSEC_DIR"/pkgs/kernels/streamcluster/inst/*/bin/streamcluster | head -1)
# Minimum and maximum of centres, dimension, points, chunk, intermediate centres: PARSEC's own configurations.
case $input in
native) words="10 20 128 1000000 200000 5000" ;;
simlarge) words="10 20 128 16384 16384 1000" ;;
simmedium) words="10 20 64 8192 8192 1000" ;;
*) words="10 20 32 4096 4096 1000" ;;
esac
began=$(now)
$tied "$program" $words none centres.txt "$threads" || fail "streamcluster failed"
ended=$(now)
[ -s centres.txt ] || wrong "it wrote no centres"
echo "time: $(seconds "$began" "$ended") s"
