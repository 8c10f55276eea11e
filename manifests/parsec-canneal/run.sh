# One run: FILES INPUT THREADS
. "$1/shared.sh"
input=$2 threads=$3
package=$PARSEC_DIR/pkgs/kernels/canneal
program=$(ls "$package"/inst/*/bin/canneal | head -1)
archive=$package/inputs/input_$input.tar
[ -f "$archive" ] || fail "$archive is not there: PARSEC's inputs are archives of their own"
tar -xf "$archive"
# Swaps a step, start temperature, netlist, steps: those of PARSEC's own configuration of each input.
case $input in
native) words="15000 2000 2500000.nets 6000" ;;
simlarge) words="15000 2000 400000.nets 128" ;;
simmedium) words="15000 2000 200000.nets 64" ;;
*) words="10000 2000 100000.nets 32" ;;
esac
began=$(now)
$tied "$program" "$threads" $words || fail "canneal failed"
echo "time: $(seconds "$began" "$(now)") s"
