-- Reads the record of one operation. Scripts on one operation consist of `clock.lua`, this, `find.lua` and
-- their own part.
--
-- KEYS 1  operations, a hash: records (field), their replies (field:r) and requests (field:q), and the floor
--      2  index, a sorted set: fields by the stamp of their last change, in microseconds; and far below them,
--         field:e by the next change that time makes to a record (`Band` in layout.rs): 2^44 times the band, plus the time
--      3  queue, a sorted set: fields by the time at which they are due
-- ARGV 2  the operation's digest, or its id; both begin with the same eight bytes
--
-- The bytes of a record, counted from 1 (see `layout.rs`):
--      1  '1' if a request waits            28  word   \
--      2  version                           29  at      | what was said of the grant; where nothing was,
--      3  how    \                          37  answer  |--      1  '1' if a request waits            28  word   \
--      2  version                           29  at      | the settlement or renewal of the grant; without one,
--      3  how    \                          37  answer  | at is the token of the step that wrote it, or 0
--      4  fence   | how it was written      38  status  | (answer 1: a reply is kept)|--      1  '1' if a request waits            28  word   \
--      2  version                           29  at      | the settlement or renewal of the grant; without one,
--      3  how    \                          37  answer  | at is the token of the step that wrote it, or 0
--      4  fence   | how it was written      38  status  | (answer 1: a reply is kept)| (answer 1: there is a reply)
--     12  at      |                         40  check  /
--     20  check  /                          48  lease, 56 span, 64 band while it runs, 65 band at its end
--                                           66  the record of core: version, id (67), digest (83), ..., checksum

local name = ARGV[2]
local field = string.sub(name, 1, 8)
local record = redis.call('HGET', KEYS[1], field)
