-- Idempotent requests: see algorithm/idempotency.rs. The record of each has a key of its own:
-- "fingerprint until_ns answered outcome", or `held` if another member denied its group.

local function read_answer(text)
  local fingerprint, last, stage, outcome = text:match('^(%d+) (%d+) (%a+) (%d [%d%- ]+)$')
  if stage ~= 'answered' and stage ~= 'held' then return nil end
  return {
    fingerprint = fingerprint, last = parse(last), is_held = stage == 'held', outcome = outcome, longest_ns = REMEMBERED_NS,
  }
end

local function write_answer(record)
  local stage = record.is_held and 'held' or 'answered'
  return string_format('%s %s %s %s', record.fingerprint, format(record.last), stage, record.outcome)
end

-- Decides an idempotent ask. `more` is " once fingerprint". A look also reports whether the ask was held back before.
local function ask_idempotent(state, ask, more)
  local fingerprint = more:match('^ once (%d+)$')
  local record, refusal = next_record(ask.at, read_answer, write_answer)
  if refusal then return nil, refusal end
  if record and record.fingerprint ~= fingerprint then return look_with_fate(state, ask.at, 'different') end
  if record and (mode == 'hold' or not record.is_held) then return with_fate(record.outcome, 'repeated') end
  local text, changed, time = decide(state, ask)
  if mode ~= 'look' then
    local last = saturating(plus(ask.at, REMEMBERED_NS))
    local answer = { fingerprint = fingerprint, last = last, is_held = mode == 'hold', outcome = text }
    remember(write_answer(answer), minus(last, ask.at))
  elseif record then
    text = text .. ' held'
  end
  return text, changed, time
end

local function decide_with_record(state, ask, more)
  if asks[ask.action] then return ask_about(state, ask, more) end
  return (more ~= '' and ask_idempotent or decide)(state, ask, more)
end

reserving = { asks = asks, decide = decide_with_record, read = read, kept = kept, write = write }
