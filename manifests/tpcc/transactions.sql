-- The five transactions of TPC-C 5.11, clause 2, each one function that draws its own input. The first
-- argument seeds the draws, the second is the number of warehouses. The constants C of NURand differ from
-- those of the load as clause 2.1.6.1 wants (the difference for last names is 65 to 119, not 96 or 112).

-- A customer by clause 2.5.1.2: three in five by last name, the middle one of its name, else by number.
CREATE FUNCTION some_customer(w int, d int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    found int[]; name text;
BEGIN
    IF within(1, 100) > 60 THEN
        RETURN nurand(1023, 1, 3000, 259);
    END IF;
    -- Drawn before the query, which would draw it anew for each row.
    name := last_name(nurand(255, 0, 999, 208));
    SELECT array_agg(c_id ORDER BY c_first) INTO found FROM customer
    WHERE c_w_id = w AND c_d_id = d AND c_last = name;
    IF found IS NULL THEN
        -- Names beyond 1000 are drawn: in a small load not each has a bearer.
        RETURN nurand(1023, 1, 3000, 259);
    END IF;
    RETURN found[(array_length(found, 1) + 1) / 2];
END $$;

-- Another warehouse, if there is one.
CREATE FUNCTION other_warehouse(w int, warehouses int) RETURNS int LANGUAGE sql VOLATILE
    AS 'SELECT CASE WHEN warehouses = 1 THEN w ELSE (w - 1 + within(1, warehouses - 1)) % warehouses + 1 END';

-- 2.4; the order's number, or null where it was rolled back for an item that there is not.
CREATE FUNCTION new_order(seed float8, warehouses int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    w int; d int := 0; c int; lines int; is_local int := 1; order_id int; w_tax_ numeric; d_tax_ numeric;
    discount numeric; is_wrong boolean; line record; price numeric; supply stock%ROWTYPE; total numeric := 0;
    dist text; quantity int; number int := 0;
    items int[] := '{}'; supplies int[] := '{}'; quantities int[] := '{}'; from_w int;
BEGIN
    PERFORM setseed(seed);
    w := within(1, warehouses); d := within(1, 10); c := nurand(1023, 1, 3000, 259); lines := within(5, 15);
    is_wrong := within(1, 100) = 1;
    FOR n IN 1..lines LOOP
        from_w := CASE WHEN within(1, 100) = 1 THEN other_warehouse(w, warehouses) ELSE w END;
        IF from_w <> w THEN is_local := 0; END IF;
        items := items || CASE WHEN is_wrong AND n = lines THEN 100001 ELSE nurand(8191, 1, 100000, 7911) END;
        supplies := supplies || from_w;
        quantities := quantities || within(1, 10);
    END LOOP;
    SELECT w_tax INTO STRICT w_tax_ FROM warehouse WHERE w_id = w;
    SELECT c_discount INTO STRICT discount FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d
    RETURNING d_next_o_id - 1, d_tax INTO STRICT order_id, d_tax_;
    INSERT INTO orders VALUES (order_id, d, w, c, now(), NULL, lines, is_local);
    INSERT INTO new_order VALUES (order_id, d, w);
    -- Stock is locked in one order by all, so that no two wait for each other.
    FOR line IN SELECT i, s, q FROM unnest(items, supplies, quantities) AS of (i, s, q) ORDER BY s, i LOOP
        SELECT i_price INTO price FROM item WHERE i_id = line.i;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no such item' USING ERRCODE = 'TC001';
        END IF;
        SELECT * INTO STRICT supply FROM stock WHERE s_w_id = line.s AND s_i_id = line.i FOR UPDATE;
        dist := CASE d WHEN 1 THEN supply.s_dist_01 WHEN 2 THEN supply.s_dist_02 WHEN 3 THEN supply.s_dist_03
            WHEN 4 THEN supply.s_dist_04 WHEN 5 THEN supply.s_dist_05 WHEN 6 THEN supply.s_dist_06
            WHEN 7 THEN supply.s_dist_07 WHEN 8 THEN supply.s_dist_08 WHEN 9 THEN supply.s_dist_09
            ELSE supply.s_dist_10 END;
        quantity := supply.s_quantity - line.q;
        UPDATE stock SET s_quantity = CASE WHEN quantity >= 10 THEN quantity ELSE quantity + 91 END,
            s_ytd = s_ytd + line.q, s_order_cnt = s_order_cnt + 1,
            s_remote_cnt = s_remote_cnt + (line.s <> w)::int
        WHERE s_w_id = line.s AND s_i_id = line.i;
        number := number + 1;
        total := total + line.q * price;
        INSERT INTO order_line
        VALUES (order_id, d, w, number, line.i, line.s, NULL, line.q, line.q * price, dist);
    END LOOP;
    total := total * (1 - discount) * (1 + w_tax_ + d_tax_);
    RETURN order_id;
EXCEPTION
    WHEN SQLSTATE 'TC001' THEN
        RETURN NULL;
END $$;

-- 2.5
CREATE FUNCTION payment(seed float8, warehouses int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    w int; d int; c int; c_w int; c_d int; amount numeric; w_name_ text; d_name_ text; credit text;
BEGIN
    PERFORM setseed(seed);
    w := within(1, warehouses); d := within(1, 10); amount := within(100, 500000) / 100.0;
    c_w := w; c_d := d;
    IF within(1, 100) > 85 THEN
        c_w := other_warehouse(w, warehouses); c_d := within(1, 10);
    END IF;
    c := some_customer(c_w, c_d);
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w RETURNING w_name INTO STRICT w_name_;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d
    RETURNING d_name INTO STRICT d_name_;
    UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount,
        c_payment_cnt = c_payment_cnt + 1
    WHERE c_w_id = c_w AND c_d_id = c_d AND c_id = c RETURNING c_credit INTO STRICT credit;
    IF credit = 'BC' THEN
        UPDATE customer SET c_data = left(format('%s %s %s %s %s %s|', c, c_d, c_w, d, w, amount) || c_data, 500)
        WHERE c_w_id = c_w AND c_d_id = c_d AND c_id = c;
    END IF;
    INSERT INTO history VALUES (c, c_d, c_w, d, w, now(), amount, left(w_name_ || '    ' || d_name_, 24));
    RETURN c;
END $$;

-- 2.6; the number of lines of the customer's last order.
CREATE FUNCTION order_status(seed float8, warehouses int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    w int; d int; c int; of orders%ROWTYPE; lines int; amount numeric;
BEGIN
    PERFORM setseed(seed);
    w := within(1, warehouses); d := within(1, 10);
    c := some_customer(w, d);
    PERFORM c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    SELECT * INTO STRICT of FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = c
    ORDER BY o_id DESC LIMIT 1;
    SELECT count(*), sum(ol_amount) INTO lines, amount FROM order_line
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = of.o_id;
    RETURN lines;
END $$;

-- 2.7, at once instead of deferred; the number of districts that had an order to deliver.
CREATE FUNCTION delivery(seed float8, warehouses int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    w int; carrier int; order_id int; c int; amount numeric; delivered int := 0;
BEGIN
    PERFORM setseed(seed);
    w := within(1, warehouses); carrier := within(1, 10);
    FOR d IN 1..10 LOOP
        -- Two deliveries of one district follow each other, and the second finds the next order.
        PERFORM 1 FROM district WHERE d_w_id = w AND d_id = d FOR UPDATE;
        SELECT no_o_id INTO order_id FROM new_order WHERE no_w_id = w AND no_d_id = d
        ORDER BY no_o_id LIMIT 1;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d AND no_o_id = order_id;
        UPDATE orders SET o_carrier_id = carrier WHERE o_w_id = w AND o_d_id = d AND o_id = order_id
        RETURNING o_c_id INTO STRICT c;
        UPDATE order_line SET ol_delivery_d = now() WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = order_id;
        SELECT sum(ol_amount) INTO amount FROM order_line
        WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = order_id;
        UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1
        WHERE c_w_id = w AND c_d_id = d AND c_id = c;
        delivered := delivered + 1;
    END LOOP;
    RETURN delivered;
END $$;

-- 2.8; the number of items of the last 20 orders of which there is little.
CREATE FUNCTION stock_level(seed float8, warehouses int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    w int; d int; threshold int; next int; low int;
BEGIN
    PERFORM setseed(seed);
    w := within(1, warehouses); d := within(1, 10); threshold := within(10, 20);
    SELECT d_next_o_id INTO STRICT next FROM district WHERE d_w_id = w AND d_id = d;
    SELECT count(DISTINCT s_i_id) INTO low FROM order_line JOIN stock ON s_w_id = w AND s_i_id = ol_i_id
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id >= next - 20 AND ol_o_id < next AND s_quantity < threshold;
    RETURN low;
END $$;
