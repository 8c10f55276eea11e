# One run: FILES DATA LEVEL
. "$1/shared.sh"
data=$2 level=$3
began=$(now)
$tied xz -z -c -T1 "-$level" "$data/text" >text.xz || fail "xz failed"
between=$(now)
mkfifo again
cmp again "$data/text" &
compared=$!
$tied xz -d -c -T1 text.xz >again || fail "xz -d failed"
wait $compared || wrong "what was decompressed is not what was compressed"
ended=$(now)
echo "time to compress: $(seconds "$began" "$between") s"
echo "time to decompress: $(seconds "$between" "$ended") s"
echo "compressed: $(wc -c <text.xz) bytes"
echo "checksum $(cksum <"$data/text" | tr ' ' '-')"
