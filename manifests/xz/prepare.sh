# Generates the text: FILES BYTES SEED
. "$1/shared.sh"
bytes=$2 seed=$3
# 20 000 words of 2 to 12 letters; word k has a probability proportional to 1 / k, by inversion: exp(u ln n).
$tied awk -v bytes="$bytes" -v seed="$seed" '
function draw() { x = (x * 16807) % 2147483647; return x }
BEGIN {
    letters = "abcdefghijklmnopqrstuvwxyz"
    x = seed % 2147483646 + 1
    for (i = 0; i < 100; i++) draw()
    words = 20000
    for (w = 0; w < words; w++) {
        length_of = 2 + draw() % 11
        word[w] = ""
        for (c = 0; c < length_of; c++) word[w] = word[w] substr(letters, 1 + draw() % 26, 1)
    }
    range = log(words)
    while (written < bytes) {
        line = ""
        while (length(line) < 70) line = line word[int(exp(draw() / 2147483647 * range)) - 1] " "
        print line
        written += length(line) + 1
    }
}' | head -c "$bytes" >text
[ "$(wc -c <text)" = "$bytes" ] || fail "the text is not whole"
