DROP INDEX IF EXISTS kept_{ends}_prefix
