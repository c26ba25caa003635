
BEGIN
    RETURN CASE WHEN row_security_active('{table}'::regclass) THEN nullif((
{user}
    )::text, '') ELSE '' END;
END
