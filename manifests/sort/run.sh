# One run: FILES DATA LINES THREADS
. "$1/shared.sh"
data=$2 lines=$3 threads=$4
size=$(wc -c <"$data/lines")
# Buffer for the text and, for each line, a pointer with the length; with some margin.
buffer=$(((size + lines * 40) / 1048576 + 16))
mkfifo sorted
cksum <sorted >checksum.log &
checksum=$!
began=$(now)
$tied sort -S "${buffer}M" --parallel="$threads" -T . "$data/lines" >sorted || fail "sort failed"
ended=$(now)
wait $checksum
# Sorts again, into the program that checks the order.
$tied sort -S "${buffer}M" --parallel="$threads" -T . "$data/lines" | sort -c - || wrong "lines out of order"
[ "$(awk '{ print $2 }' checksum.log)" = "$size" ] || wrong "$size bytes went in, other than came out"
echo "sort time: $(seconds "$began" "$ended") s"
echo "checksum $(awk '{ print $1 }' checksum.log)"
