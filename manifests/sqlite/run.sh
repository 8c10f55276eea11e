# One run: FILES ROWS LOOKUPS SEED
. "$1/shared.sh"
rows=$2 lookups=$3 seed=$4

# Keys are numbered rows under a bijection of 32 bits (the multiplier is odd); lookups select rows by
# a multiplicative generator that does not read the table.
key="((%s) * 2654435761 + $seed) %% 4294967296"
row_of_lookup="((j * 1103515245 + $seed * 12345) % 2147483647) % $rows + 1"
key_of_row=$(printf "$key" i)
key_of_lookup=$(printf "$key" "$row_of_lookup")
cat >run.sql <<SQL
.bail on
.mode list
PRAGMA journal_mode = OFF;
PRAGMA temp_store = MEMORY;
CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER, payload TEXT);
.print build
.timer on
INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT $rows)
SELECT $key_of_row, i, printf('%064d', i) FROM n;
.print lookups
WITH RECURSIVE n(j) AS (SELECT 1 UNION ALL SELECT j + 1 FROM n LIMIT $lookups)
SELECT 'found ' || count(*) || ' ' || sum(v) FROM n CROSS JOIN t ON t.k = $key_of_lookup;
.timer off
.print check
WITH RECURSIVE n(j) AS (SELECT 1 UNION ALL SELECT j + 1 FROM n LIMIT $lookups)
SELECT 'wanted ' || count(*) || ' ' || sum($row_of_lookup) FROM n;
SQL
$tied sqlite3 -batch :memory: <run.sql >run.log 2>&1 || fail "sqlite3 failed: $(tail -3 run.log)"
found=$(sed -n 's/^found //p' run.log)
wanted=$(sed -n 's/^wanted //p' run.log)
[ -n "$found" ] && [ "$found" = "$wanted" ] || wrong "count and sum of the rows found: $found, wanted: $wanted"
awk -v lookups="$lookups" '
/^build$/ || /^lookups$/ { part = $1 }
/^Run Time: real/ && part == "build" { printf "build: %s s\n", $4 }
/^Run Time: real/ && part == "lookups" { printf "lookup rate: %.1f 1/s\n", lookups / $4 }' run.log
echo "checksum $(echo "$found" | tr ' ' '-')"
