INSERT INTO live (id, prefix, tenant, project, endpoint, key, state, created, request, record)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
