-- Idempotent requests: see algorithm/idempotency.rs. The record of each has a key of its own:
-- "fingerprint until_ns answered outcome", or `held` where another one that it belongs with denied it.

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

local function remember_answer(fingerprint, is_held, text, at)
  local last = saturating(plus(at, REMEMBERED_NS))
  local text = write_answer({ fingerprint = fingerprint, last = last, is_held = is_held, outcome = text })
  remember(text, minus(last, at))
end

-- Decides an ask that is answered once; `more` is " once fingerprint". A look also reports whether the ask was held back before.
local function ask_once(state, ask, more)
  local fingerprint = more:match('^ once (%d+)$')
  local record, refusal = next_record(ask.at, read_answer, write_answer)
  if refusal then return nil, refusal end
  if record and record.fingerprint ~= fingerprint then return looked(state, ask.at, 'different') end
  if record and (mode == 'hold' or not record.is_held) then return told(record.outcome, 'repeated') end
  local text, changed, time = (ask.drains and limit.drain or decide)(state, ask)
  if mode ~= 'look' then
    remember_answer(fingerprint, mode == 'hold', text, ask.at)
  elseif record then
    text = text .. ' held'
  end
  return text, changed, time
end

reserving.once = ask_once
