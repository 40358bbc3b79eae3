-- completion.lua - for wrk: a short completion, the same prompt each time.
--
-- SPDX-License-Identifier: MIT
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"prompt": "Once upon a time, there was a", "max_tokens": 4, "temperature": 0, "ignore_eos": true}'
