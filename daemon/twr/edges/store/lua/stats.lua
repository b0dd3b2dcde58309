-- What waits where, from counters alone: the cost does not grow with the queues.
-- Writes nothing.
--
-- Returns now, then per known route: name, last served ms, ready, delayed, processing, waiting
-- (all that is neither delivered nor dead), accepted ms of the oldest or -1, suspects;
-- then route/reason and count of the dead letters as one flat list; last, the same of all that ever
-- died. A damaged route is left out.
local out = {NOW}
each_route(function(route)
  local oldest = call('ZRANGE', route_key(route, 'all'), 0, 0, 'WITHSCORES')
  out[#out + 1] = {route, call('HGET', ROUTES, route), call('LLEN', route_key(route, 'ready')),
    call('ZCARD', route_key(route, 'delayed')), call('ZCARD', route_key(route, 'processing')),
    call('ZCARD', route_key(route, 'all')), tonumber(oldest[2] or -1),
    call('LLEN', route_key(route, 'suspect'))}
end)
out[#out + 1] = call('HGETALL', COUNTS)
out[#out + 1] = call('HGETALL', DIED)
return out
