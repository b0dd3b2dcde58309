-- Requeue the calling process's own leases that it does not hold: claims whose answer was lost.
-- No crash is counted. The caller has no claim under way meanwhile. Safe to repeat.
--
-- ARGV: nonce, job ids held…
-- Returns the ids that were requeued.
local nonce = ARGV[1]
local held = {}
for n = 2, #ARGV do held[ARGV[n]] = true end

local found = {}
for _, route in ipairs(call('HKEYS', ROUTES)) do
  for _, id in ipairs(call('ZREVRANGE', route_key(route, 'processing'), 0, -1)) do
    local job = call('HMGET', job_key(id), 'state', 'token')
    if not held[id] and job[1] == 'processing' and nonce_of(job[2]) == nonce then
      requeue(id, route, false)
      found[#found + 1] = id
    end
  end
end
return found
