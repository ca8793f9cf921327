// Drives a running server with real Node clients: node drive.js CLIENT LINE_PORT RESP_PORT [PASSWORD [USER]]
// Exits with 0 if every answer matches the rules in tests/compat/line-protocol.ini.
'use strict';

const assert = require('node:assert/strict');

const [client, linePort, respPort] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const [password, username] = [process.argv[5], process.argv[6]];

// The path determines the actor, so that clients do not share a counter.
const operation = (ip) => ['method=GET', 'path=/pantry/cookies/x', `ip=${ip}`];

const drivers = {
  async 'divvy-client'() {
    const Client = require('@button/divvy-client');
    const divvy = new Client('127.0.0.1', linePort);
    const hit = () => divvy.hit({ method: 'GET', path: '/pantry/cookies/x', ip: 'divvy-client' });
    const answers = [await hit(), ...(await Promise.all([hit(), hit(), hit()]))];
    assert.deepEqual(answers.map((a) => [a.isAllowed, a.currentCredit]), [[true, 2], [true, 1], [true, 0], [false, 0]]);
    assert.ok(answers.every((a) => a.nextResetSeconds > 3590 && a.nextResetSeconds <= 3600));
    assert.deepEqual(await divvy.hit(), { isAllowed: false, currentCredit: 0, nextResetSeconds: 0 });
    // An empty line is an error, and the connection stays open.
    await assert.rejects(divvy._enqueueMessage('EGGPLANT\n').promise, /ERR unknown-command "Unrecognized command: EGGPLANT"/);
    assert.equal((await divvy.hit({ method: 'GET', path: '/status' })).currentCredit, 999);
    divvy.close();
  },

  async ioredis() {
    const { Redis } = require('ioredis');
    const redis = new Redis(respPort, '127.0.0.1', { username, password });
    await drive((...words) => redis.call(...words));
    const pipeline = redis.pipeline();
    for (let i = 0; i < 3; i++) pipeline.call('DIVVY.HIT', ...operation('ioredis-pipeline'));
    assert.deepEqual((await pipeline.exec()).map(([error, reply]) => [error, reply[1]]), [[null, 2], [null, 1], [null, 0]]);
    const transaction = redis.multi();
    for (let i = 0; i < 3; i++) transaction.call('DIVVY.HIT', ...operation('ioredis-multi'));
    assert.deepEqual((await transaction.exec()).map(([error, reply]) => [error, reply[1]]), [[null, 2], [null, 1], [null, 0]]);
    await assert.rejects(redis.multi().call('DIVVY.HIT', ...operation('ioredis-aborted')).call('NONSENSE').exec(), /EXECABORT/);
    assert.equal((await redis.call('DIVVY.PEEK', ...operation('ioredis-aborted')))[1], 3);
    await redis.quit();
  },

  async 'node-redis'() {
    const { createClient } = require('redis');
    for (const RESP of [2, 3]) {
      const redis = createClient({ socket: { host: '127.0.0.1', port: respPort }, RESP, username, password });
      await redis.connect();
      await drive((...words) => redis.sendCommand(words), `${RESP}`);
      const hits = redis.multi();
      for (let i = 0; i < 3; i++) hits.addCommand(['DIVVY.HIT', ...operation(`node-redis-multi-${RESP}`)]);
      hits.ping();
      const replies = await hits.exec();
      assert.deepEqual(replies.slice(0, 3).map((reply) => reply[1]), [2, 1, 0]);
      assert.equal(replies[3], 'PONG');
      assert.ok((await redis.clientList()).some((listed) => listed.addr.startsWith('127.0.0.1:')));
      await redis.close();
    }
  },
};

async function drive(call, suffix = '') {
  const hit = () => call('DIVVY.HIT', ...operation(client + suffix));
  const answers = [await hit(), ...(await Promise.all([hit(), hit(), hit()]))];
  assert.deepEqual(answers.map(([allowed, credit]) => [allowed, credit]), [[1, 2], [1, 1], [1, 0], [0, 0]]);
  assert.equal((await call('DIVVY.PEEK', ...operation(client + suffix)))[0], 0);
  assert.equal(await call('DIVVY.RESET', ...operation(client + suffix)), 1);
  assert.equal((await hit())[1], 2);
  assert.equal(await call('PING'), 'PONG');
  await assert.rejects(call('DIVVY.HIT', 'no-pair'), /ERR/);
  assert.match(String(await call('INFO')), /divvy_version/);
}

drivers[client]().catch((error) => {
  console.error(error);
  process.exit(1);
});
