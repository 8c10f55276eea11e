-- Consistency conditions 1 to 4 of TPC-C 5.11, clause 3.3.2: a line for each that does not hold.
SELECT 'condition 1: w_ytd of warehouse ' || w_id || ' is ' || w_ytd || ', its districts have ' || sum(d_ytd)
FROM warehouse JOIN district ON d_w_id = w_id GROUP BY w_id, w_ytd HAVING w_ytd <> sum(d_ytd);
SELECT 'condition 2: district ' || d_w_id || '.' || d_id || ' goes on with ' || d_next_o_id || ', its last order is '
    || coalesce(last_order::text, 'none') || ', its last new order ' || coalesce(last_new::text, 'none')
FROM district
LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS last_order FROM orders GROUP BY 1, 2) AS o
    ON o_w_id = d_w_id AND o_d_id = d_id
LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS last_new FROM new_order GROUP BY 1, 2) AS n
    ON no_w_id = d_w_id AND no_d_id = d_id
-- A district whose orders are all delivered has no new one (3.3.2.2 speaks of those that have).
WHERE d_next_o_id - 1 IS DISTINCT FROM last_order OR last_new <> last_order;
SELECT 'condition 3: district ' || no_w_id || '.' || no_d_id || ' has ' || count(*) || ' new orders from '
    || min(no_o_id) || ' to ' || max(no_o_id)
FROM new_order GROUP BY no_w_id, no_d_id HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*);
SELECT 'condition 4: district ' || o_w_id || '.' || o_d_id || ' has ' || lines || ' lines, its orders name '
    || sum(o_ol_cnt)
FROM orders JOIN (SELECT ol_w_id, ol_d_id, count(*) AS lines FROM order_line GROUP BY 1, 2) AS l
    ON ol_w_id = o_w_id AND ol_d_id = o_d_id
GROUP BY o_w_id, o_d_id, lines HAVING sum(o_ol_cnt) <> lines;
