-- One record per (namespace, caller, key). The id is a digest, so no collation,
-- length or personal data reaches the index; it is the only index a claim touches.
CREATE TABLE IF NOT EXISTS {table} (
    id                  bytea       PRIMARY KEY CHECK (octet_length(id) = 32),
    state               text        NOT NULL CHECK (state IN ('running', 'completed', 'held')),
    owner               bytea       NOT NULL CHECK (octet_length(owner) = 16),
    fence               bigint      NOT NULL,
    fingerprint         bytea       NOT NULL,
    fingerprint_version integer     NOT NULL,
    caller              text        NOT NULL,
    key_hint            text        NOT NULL,
    key                 text,
    method              text        NOT NULL,
    path                text        NOT NULL,
    created_at          timestamptz NOT NULL,
    lease_until         timestamptz,
    completed_at        timestamptz,
    expires_at          timestamptz,
    purge_at            timestamptz,
    status              integer,
    headers             bytea,
    body                bytea
);
-- Purge walks this index in bounded batches.
CREATE INDEX IF NOT EXISTS {index}_purge_at ON {table} (purge_at) WHERE purge_at IS NOT NULL;
-- Which version of the table each name has; released code refuses a version it does not know.
CREATE TABLE IF NOT EXISTS samekey_schema (
    table_name text    PRIMARY KEY,
    version    integer NOT NULL
);
INSERT INTO samekey_schema (table_name, version) VALUES ('{table}', {version}) ON CONFLICT DO NOTHING;
