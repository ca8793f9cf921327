-- The changes of actors' limits after one that is known. KEYS: the limits, when they changed, and since when there are any.
-- ARGV: since when there were any then, the number of the known change and whose limit it was (empty: none is known), and how
-- many to tell at most. Answers since when there are any, whether all are told from the start, whether these are the last, and for each its number, whose limit it is and what it is.

local limits, changes, born = KEYS[1], KEYS[2], redis.call('GET', KEYS[3]) or '0'
local known_born, known, of, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- A change that is known and not there was lost: another Redis has taken over, or somebody has emptied this one.
local number = of ~= '' and redis.call('ZSCORE', changes, of)
local starts_over = born ~= known_born or not number or tonumber(number) < tonumber(known)
local after = starts_over and '-inf' or '(' .. known
local found = redis.call('ZRANGEBYSCORE', changes, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local answer = { born, starts_over and '1' or '0', #found < 2 * most and '1' or '0' }
for place = 1, #found, 2 do
  local of_whom = found[place]
  table.insert(answer, string.format('%.0f', found[place + 1]))
  table.insert(answer, of_whom)
  table.insert(answer, redis.call('HGET', limits, of_whom) or ' ')
end
return answer
