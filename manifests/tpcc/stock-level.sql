-- Its input is drawn in the server from this seed.
\set seed random(0, 1000000000)
SELECT stock_level(:seed / 1000000000.0, :warehouses);
