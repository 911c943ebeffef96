-- One record per (namespace, caller, key). The id is a digest, so no collation,
-- length or personal data reaches the index; it is the only index a claim touches.
-- Times are whole microseconds since 1970-01-01 UTC: SQLite has no time type.
CREATE TABLE IF NOT EXISTS {table} (
    id                  BLOB    PRIMARY KEY CHECK (length(id) = 32),
    state               TEXT    NOT NULL CHECK (state IN ('running', 'completed', 'held')),
    owner               BLOB    NOT NULL CHECK (length(owner) = 16),
    fence               INTEGER NOT NULL,
    fingerprint         BLOB    NOT NULL,
    fingerprint_version INTEGER NOT NULL,
    caller              TEXT    NOT NULL,
    key_hint            TEXT    NOT NULL,
    key                 TEXT,
    method              TEXT    NOT NULL,
    path                TEXT    NOT NULL,
    created_at          INTEGER NOT NULL,
    lease_until         INTEGER,
    completed_at        INTEGER,
    expires_at          INTEGER,
    purge_at            INTEGER,
    status              INTEGER,
    headers             BLOB,
    body                BLOB
);
-- Purge walks this index in bounded batches.
CREATE INDEX IF NOT EXISTS {index}_purge_at ON {table} (purge_at) WHERE purge_at IS NOT NULL;
-- Which version of the table each name has; released code refuses a version it does not know.
CREATE TABLE IF NOT EXISTS samekey_schema (
    table_name TEXT    PRIMARY KEY,
    version    INTEGER NOT NULL
);
INSERT INTO samekey_schema (table_name, version) VALUES ('{table}', {version}) ON CONFLICT DO NOTHING;
