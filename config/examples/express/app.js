const express = require('express');
const divvy = require('./divvy');

const app = express();
app.use(
  divvy({
    url: process.env.DIVVY_URL || 'http://127.0.0.1:8322',
    operation: (request) => ({ method: request.method, path: request.path, ip: request.ip }),
  }),
);
app.all(/.*/, (request, response) => response.send('hello\n'));
app.listen(Number(process.env.PORT || 3000), '127.0.0.1');
