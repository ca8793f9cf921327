/** Reads server-sent events from a response, because EventSource hides the status and the time when to try again. */

/**
 * Yields the events of a stream.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{name: string, data: string}>}
 */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      pending += value.replaceAll('\r\n', '\n');
      const blocks = pending.split('\n\n');
      pending = blocks.pop();
      for (const block of blocks) yield parse(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  const event = { name: 'message', data: '' };
  for (const line of block.split('\n')) {
    const [, field, text] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === 'event') event.name = text;
    else if (field === 'data') event.data += text;
  }
  return event;
}
