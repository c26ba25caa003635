INSERT INTO kept_{ends} (
    id, prefix, tenant, project, endpoint, key, state, created, over, replied, record, reply, request
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
