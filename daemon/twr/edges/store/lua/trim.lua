-- Drop the oldest dead letters: those over an age, then those over a count.
-- Safe to repeat.
--
-- ARGV: most age ms, most kept, most dropped in this call
-- Returns how many were dropped, 1 when more may be left.
local most = tonumber(ARGV[3])
local ids = call('ZRANGEBYSCORE', DEAD, '-inf', NOW - tonumber(ARGV[1]), 'LIMIT', 0, most)
local over = call('ZCARD', DEAD) - tonumber(ARGV[2])
if over > #ids then ids = call('ZRANGE', DEAD, 0, math.min(over, most) - 1) end
for _, id in ipairs(ids) do erase(id) end
return {#ids, #ids == most and 1 or 0}
