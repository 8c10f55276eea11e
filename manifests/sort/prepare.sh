# Generates the lines: FILES LINES SEED
. "$1/shared.sh"
lines=$2 seed=$3
# The generator is that of Park and Miller, so that every awk generates the same lines.
$tied awk -v lines="$lines" -v seed="$seed" '
BEGIN {
    letters = "0123456789abcdefghijklmnopqrstuvwxyz"
    for (a = 0; a < 36; a++) for (b = 0; b < 36; b++)
        for (c = 0; c < 36; c++)
            word[a * 1296 + b * 36 + c] = substr(letters, a + 1, 1) substr(letters, b + 1, 1) substr(letters, c + 1, 1)
    x = seed % 2147483646 + 1
    for (i = 0; i < 100; i++) x = (x * 16807) % 2147483647
    rest = "the-rest-of-the-line-is-the-same-for-all-of-them"
    for (n = 0; n < lines; n++) {
        line = ""
        for (w = 0; w < 4; w++) { x = (x * 16807) % 2147483647; line = line word[x % 46656] }
        print line rest
    }
}' >lines
[ "$(wc -l <lines)" = "$lines" ] || fail "the lines are not whole"
