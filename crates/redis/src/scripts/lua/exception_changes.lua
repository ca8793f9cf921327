-- Returns the changes of actors' exceptions after the last one that the server has read (the known change). KEYS: the
-- exceptions, the times of their changes, and the number of the first change. ARGV: that number when the known change was
-- read, the number of the known change, its owner and actor (empty: no change is known), and the maximum number of
-- changes to return. Returns the number of the first change, whether the answer starts over with all exceptions, whether
-- this is the last page, a list: for each change its number, its owner and actor, and the exception, and the time in
-- milliseconds.

local exceptions, changes, born = KEYS[1], KEYS[2], redis.call('GET', KEYS[3]) or '0'
local known_born, known, of, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- If the known change is missing, it was lost: another Redis has taken over, or this one was emptied.
local number = of ~= '' and redis.call('ZSCORE', changes, of)
local starts_over = born ~= known_born or not number or tonumber(number) < tonumber(known)
local after = starts_over and '-inf' or '(' .. known
local found = redis.call('ZRANGEBYSCORE', changes, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local changed = {}
for place = 1, #found, 2 do
  local of_whom = found[place]
  table.insert(changed, string.format('%.0f', found[place + 1]))
  table.insert(changed, of_whom)
  table.insert(changed, redis.call('HGET', exceptions, of_whom) or ' ')
end
local time = redis.call('TIME')
local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
return { born, starts_over and 1 or 0, #found < 2 * most and 1 or 0, changed, now_ms }
