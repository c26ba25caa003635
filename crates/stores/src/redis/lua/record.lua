-- Reads the record of one operation, in every script on one; `clock.lua` goes before, `find.lua` behind.
--
-- KEYS 1  operations, a hash: records (field), their replies (field:r) and requests (field:q), and the floor
--      2  index, a sorted set: fields by the stamp of their last change, in microseconds; and far below them,
--         field:e by what time does to a record next (`Band` in layout.rs): 2^44 times the band, and the moment
--      3  queue, a sorted set: fields by when they are due
-- ARGV 2  the operation's digest, or its id; both begin with the same eight bytes
--
-- A record is `layout.rs` in bytes, counted from 1:
--      1  '1' if a request waits            28  word   \
--      2  version                           29  at      | what was said of the grant; where nothing was,
--      3  how    \                          37  answer  | at is the token of the step that wrote it, or 0
--      4  fence   | how it was written      38  status  | (answer 1: there is a reply)
--     12  at      |                         40  check  /
--     20  check  /                          48  lease, 56 span, 64 band while it runs, 65 band at its end
--                                           66  the record of core: version, id (67), digest (83), ..., checksum

local name = ARGV[2]
local field = string.sub(name, 1, 8)
local record = redis.call('HGET', KEYS[1], field)
