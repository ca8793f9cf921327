const express = require('express');
const divvy = require('./divvy');

const app = express();

// Normalize the path as Express routes it: /LOGIN and /login/ are /login.
const path = (request) => request.path.toLowerCase().replace(/(.)\/$/, '$1');

app.use(
  divvy({
    url: process.env.DIVVY_URL || 'http://127.0.0.1:8322',
    token: process.env.DIVVY_TOKEN,
    timeout: Number(process.env.DIVVY_TIMEOUT_MS || 250),
    operation: (request) => ({ method: request.method, path: path(request), ip: request.ip }),
  }),
);
app.all(/.*/, (request, response) => response.send('hello\n'));
app.listen(Number(process.env.PORT || 3000), '127.0.0.1');
