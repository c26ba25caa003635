
-- A user sees its own rows and no others.
IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {role_text}) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
        'there is no role %s; create it first, or name another (--rls-role)', {role_text});
END IF;
IF (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = {role_text}) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
        'the role %s is above row-level security (SUPERUSER or BYPASSRLS); use a role without these', {role_text});
END IF;
IF (SELECT pg_has_role({role_text}, relowner, 'MEMBER') FROM pg_class WHERE oid = '{table}'::regclass) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
        'the role %s owns {table}, and row-level security does not bind owners; use another role', {role_text});
END IF;

-- Without a user (NULL) nothing can be read or written. The empty text counts as no
-- user too: a setting is empty after the transaction that set it, and rows written
-- without row-level security have the empty text as their owner.
BEGIN
    CREATE OR REPLACE FUNCTION {table}_owner() RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
    AS {owner};
    PERFORM {table}_owner();
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE;
    WHEN OTHERS THEN
        RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
            'the expression of --rls-user is not valid: %s; write SQL that returns the user as a text, with the schemas of your own functions and tables, such as current_setting(''app.user_id'', true)',
            SQLERRM);
END;

IF NOT (SELECT relrowsecurity FROM pg_class WHERE oid = '{table}'::regclass) THEN
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
END IF;
IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = '{table}'::regclass AND polname = 'own') THEN
    CREATE POLICY own ON {table}
        USING (owner = (SELECT {table}_owner())) WITH CHECK (owner = (SELECT {table}_owner()));
END IF;
IF NOT (SELECT relrowsecurity FROM pg_class WHERE oid = '{table}_document'::regclass) THEN
    ALTER TABLE {table}_document ENABLE ROW LEVEL SECURITY;
END IF;
IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = '{table}_document'::regclass AND polname = 'own') THEN
    CREATE POLICY own ON {table}_document
        USING (owner = (SELECT {table}_owner())) WITH CHECK (owner = (SELECT {table}_owner()));
END IF;

-- The policy above does not apply to a partition that is accessed by its own name.
DECLARE
    part regclass;
BEGIN
    FOR part IN
        SELECT relid FROM pg_partition_tree('{table}'::regclass) WHERE relid <> '{table}'::regclass
    LOOP
        IF NOT (SELECT relrowsecurity FROM pg_class WHERE oid = part) THEN
            EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', part);
        END IF;
        EXECUTE format('REVOKE ALL ON %s FROM %I', part, {role_text});
    END LOOP;
END;

-- Default privileges may have granted more than is needed.
REVOKE ALL ON {table}, {table}_document, {table}_migration FROM {role};
REVOKE ALL ON SEQUENCE {table}_fence FROM {role};

IF NOT has_schema_privilege({role_text}, '{schema}', 'USAGE') THEN
    GRANT USAGE ON SCHEMA {schema} TO {role};
    -- PostgreSQL only warns where this user may not grant the privilege.
    IF NOT has_schema_privilege({role_text}, '{schema}', 'USAGE') THEN
        RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
            'the role %s may not use the schema {schema}, and this user may not grant USAGE; let the schema''s owner grant it', {role_text});
    END IF;
END IF;
GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, {table}_document TO {role};
GRANT SELECT ON {table}_migration TO {role};
GRANT USAGE ON SEQUENCE {table}_fence TO {role};
GRANT EXECUTE ON FUNCTION {table}_owner(), {table}_sweep(text, bigint, integer) TO {role};
