# Creates the database: FILES WAREHOUSES
. "$1/shared.sh"
. "$1/postgres.sh"
files=$1 warehouses=$2
pg_own cluster
cd cluster
pg_create
pg_start 268435456 off
$as createdb -T template0 bench
cat "$files/schema.sql" "$files/load.sql" "$files/transactions.sql" |
    pg_ask -o load.log -v warehouses="$warehouses" -f - 2>../load.errors ||
    fail "the load failed: $(grep -m 1 ERROR ../load.errors)"
rm load.log ../load.errors
broken=$(cat "$files/consistency.sql" | pg_ask -f -)
[ -z "$broken" ] || fail "the load is not consistent: $broken"
pg_stop
