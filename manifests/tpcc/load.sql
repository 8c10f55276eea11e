-- The initial population of TPC-C 5.11, clause 4.3.3, for :warehouses warehouses, the same each time.
-- Letters are of md5 sums of numbers by chance: 16 different ones where the clause has more.
SET max_parallel_workers_per_gather = 0;
SELECT setseed(0.42);

-- A whole number from the first to the second.
CREATE FUNCTION within(lowest int, highest int) RETURNS int LANGUAGE sql VOLATILE
    AS 'SELECT lowest + floor(random() * (highest - lowest + 1))::int';
-- Letters by chance, from the first to the second number of them.
CREATE FUNCTION letters(lowest int, highest int) RETURNS text LANGUAGE sql VOLATILE
    AS $$SELECT left(string_agg(md5(random()::text), ''), within(lowest, highest))
         FROM generate_series(1, (highest + 31) / 32)$$;
-- 24 letters, for which there are many.
CREATE FUNCTION dist() RETURNS text LANGUAGE sql VOLATILE AS 'SELECT left(md5(random()::text), 24)';
-- One in ten has ORIGINAL in it (4.3.3.1).
CREATE FUNCTION item_data() RETURNS text LANGUAGE sql VOLATILE
    AS $$SELECT CASE WHEN within(1, 10) = 1 THEN overlay(t PLACING 'ORIGINAL' FROM within(1, length(t) - 8))
         ELSE t END FROM (SELECT letters(26, 50) AS t) AS text$$;
CREATE FUNCTION zip() RETURNS text LANGUAGE sql VOLATILE
    AS $$SELECT lpad(within(0, 9999)::text, 4, '0') || '11111'$$;
-- The last name of a number (4.3.2.3).
CREATE FUNCTION last_name(n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT s[n / 100 + 1] || s[n / 10 % 10 + 1] || s[n % 10 + 1]
    FROM (SELECT '{BAR,OUGHT,ABLE,PRI,PRES,ESE,ANTI,CALLY,ATION,EING}'::text[] AS s) AS syllables$$;
-- NURand (2.1.6); c is the constant of the run.
CREATE FUNCTION nurand(a int, lowest int, highest int, c int) RETURNS int LANGUAGE sql VOLATILE
    AS 'SELECT ((within(0, a) | within(lowest, highest)) + c) % (highest - lowest + 1) + lowest';

INSERT INTO item SELECT i, within(1, 10000), letters(14, 24), within(100, 10000) / 100.0, item_data()
FROM generate_series(1, 100000) AS i;
INSERT INTO warehouse SELECT w, letters(6, 10), letters(10, 20), letters(10, 20), letters(10, 20),
    letters(2, 2), zip(), within(0, 2000) / 10000.0, 300000
FROM generate_series(1, :warehouses) AS w;
INSERT INTO stock SELECT i, w, within(10, 100), dist(), dist(), dist(), dist(), dist(), dist(), dist(),
    dist(), dist(), dist(), 0, 0, 0, item_data()
FROM generate_series(1, :warehouses) AS w, generate_series(1, 100000) AS i;
INSERT INTO district SELECT d, w, letters(6, 10), letters(10, 20), letters(10, 20), letters(10, 20),
    letters(2, 2), zip(), within(0, 2000) / 10000.0, 30000, 3001
FROM generate_series(1, :warehouses) AS w, generate_series(1, 10) AS d;
INSERT INTO customer SELECT c, d, w, letters(8, 16), 'OE',
    last_name(CASE WHEN c <= 1000 THEN c - 1 ELSE nurand(255, 0, 999, 123) END), letters(10, 20),
    letters(10, 20), letters(10, 20), letters(2, 2), zip(), lpad(within(0, 999999999)::text, 16, '0'),
    timestamp '2020-01-01', CASE WHEN within(1, 10) = 1 THEN 'BC' ELSE 'GC' END, 50000,
    within(0, 5000) / 10000.0, -10, 10, 1, 0, letters(300, 500)
FROM generate_series(1, :warehouses) AS w, generate_series(1, 10) AS d, generate_series(1, 3000) AS c;
INSERT INTO history SELECT c, d, w, d, w, timestamp '2020-01-01', 10, letters(12, 24)
FROM generate_series(1, :warehouses) AS w, generate_series(1, 10) AS d, generate_series(1, 3000) AS c;
-- Customers are a permutation in each district.
INSERT INTO orders SELECT row_number() OVER (PARTITION BY w, d ORDER BY chance), d, w, c,
    timestamp '2020-01-01', NULL, within(5, 15), 1
FROM (SELECT w, d, c, random() AS chance FROM generate_series(1, :warehouses) AS w,
    generate_series(1, 10) AS d, generate_series(1, 3000) AS c) AS permutation;
UPDATE orders SET o_carrier_id = within(1, 10) WHERE o_id < 2101;
INSERT INTO order_line SELECT o_id, o_d_id, o_w_id, n, within(1, 100000), o_w_id,
    CASE WHEN o_id < 2101 THEN o_entry_d END, 5,
    CASE WHEN o_id < 2101 THEN 0 ELSE within(1, 999999) / 100.0 END, dist()
FROM orders, LATERAL generate_series(1, o_ol_cnt) AS n ORDER BY o_w_id, o_d_id, o_id, n;
INSERT INTO new_order SELECT o_id, o_d_id, o_w_id FROM orders WHERE o_id > 2100;

ALTER TABLE warehouse ADD PRIMARY KEY (w_id);
ALTER TABLE district ADD PRIMARY KEY (d_w_id, d_id);
ALTER TABLE customer ADD PRIMARY KEY (c_w_id, c_d_id, c_id);
ALTER TABLE new_order ADD PRIMARY KEY (no_w_id, no_d_id, no_o_id);
ALTER TABLE orders ADD PRIMARY KEY (o_w_id, o_d_id, o_id);
ALTER TABLE order_line ADD PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number);
ALTER TABLE item ADD PRIMARY KEY (i_id);
ALTER TABLE stock ADD PRIMARY KEY (s_w_id, s_i_id);
CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last, c_first);
CREATE INDEX orders_by_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
VACUUM ANALYZE;
