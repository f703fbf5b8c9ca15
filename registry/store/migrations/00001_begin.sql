-- +goose Up
CREATE TABLE counter (
    id          integer PRIMARY KEY CHECK (id = 1),
    cluster_uid text     NOT NULL,
    epoch       text     NOT NULL,
    term        integer  NOT NULL,
    revision    integer  NOT NULL,
    batch       text     NOT NULL, -- of the newest revision
    tag         text     NOT NULL, -- of the newest commit, which may have made no revision
    floor       integer  NOT NULL,
    floor_batch text     NOT NULL, -- of the floor's revision, whose row may be gone
    swept       integer  NOT NULL, -- up to where the log has been compacted; at most the floor
    created_at  datetime NOT NULL
);

CREATE TABLE sequences (
    name  text PRIMARY KEY,
    value integer NOT NULL
) WITHOUT ROWID;

CREATE TABLE nodes (
    uid              text PRIMARY KEY,
    id               text     NOT NULL,
    hostname         text     NOT NULL,
    addr             text     NOT NULL,
    port             integer  NOT NULL,
    secure           boolean  NOT NULL,
    role             text     NOT NULL,
    cpu_count        integer  NOT NULL,
    memory_mb        integer  NOT NULL,
    labels           text,
    agent_labels     text,
    label_edits      text,
    images           text,
    version          text     NOT NULL,
    boot_id          text     NOT NULL,
    incarnation      integer  NOT NULL,
    status           text     NOT NULL,
    status_reason    text     NOT NULL,
    status_since     datetime NOT NULL,
    schedulable      boolean  NOT NULL,
    drain            text,
    volumes          text,
    removing_volumes text,
    host_paths       text,
    disk_limits      boolean  NOT NULL,
    desired_revision integer  NOT NULL,
    forgotten        boolean  NOT NULL,
    subnet           text     NOT NULL,
    registered_at    datetime NOT NULL,
    birth_hash       text     NOT NULL,
    revision         integer  NOT NULL,
    last_seen        datetime NOT NULL
);

CREATE TABLE instances (
    id               text PRIMARY KEY,
    name             text     NOT NULL,
    node_uid         text     REFERENCES nodes (uid),
    type             text     NOT NULL,
    cpu_limit        integer  NOT NULL,
    mem_limit_mb     integer  NOT NULL,
    base_image       text     NOT NULL,
    command          text,
    env_names        text,
    labels           text,
    node_selector    text,
    volumes          text,
    disk_limit_mb    integer  NOT NULL,
    status           text     NOT NULL,
    status_reason    text     NOT NULL,
    desired          text     NOT NULL,
    generation       integer  NOT NULL,
    machine          text     NOT NULL,
    addr             text     NOT NULL,
    pid              integer,
    exit_code        integer,
    created_at       datetime NOT NULL,
    started_at       datetime,
    ended_at         datetime,
    terminated_at    datetime,
    queue_deadline   datetime,
    drain_until      datetime,
    reserved         boolean  NOT NULL,
    desired_revision integer  NOT NULL,
    revision         integer  NOT NULL,
    image_digest     text     NOT NULL,
    pinned_node      text     REFERENCES nodes (uid),
    env              text,
    output           text     NOT NULL
);

CREATE TABLE services (
    id               text PRIMARY KEY,
    name             text     NOT NULL,
    instance_id      text     NOT NULL REFERENCES instances (id),
    owns_instance    boolean  NOT NULL,
    announced        boolean  NOT NULL,
    deploy_url       text     NOT NULL,
    sha256           text     NOT NULL,
    command          text     NOT NULL,
    env_names        text     NOT NULL,
    user             text     NOT NULL,
    dir              text     NOT NULL,
    port             integer  NOT NULL,
    publish          text,
    checks           text     NOT NULL,
    restart          text     NOT NULL,
    registrations    text     NOT NULL,
    stable_for       integer  NOT NULL, -- nanoseconds
    drain_for        integer  NOT NULL, -- nanoseconds
    drain_until      datetime,
    status           text     NOT NULL,
    status_reason    text     NOT NULL,
    health           text     NOT NULL,
    health_reason    text     NOT NULL,
    check_results    text     NOT NULL,
    desired          text     NOT NULL,
    generation       integer  NOT NULL,
    restarts         integer  NOT NULL,
    pid              integer,
    exit_code        integer,
    created_at       datetime NOT NULL,
    started_at       datetime,
    ended_at         datetime,
    removed_at       datetime,
    desired_revision integer  NOT NULL,
    revision         integer  NOT NULL,
    env              text
);

CREATE INDEX services_instance ON services (instance_id);

CREATE TABLE entries (
    key           text PRIMARY KEY,
    cluster       text     NOT NULL,
    protocol      text     NOT NULL,
    service       text     NOT NULL,
    address       text     NOT NULL,
    port          integer,
    priority      integer  NOT NULL,
    annotations   text,
    ttl           integer, -- nanoseconds; below 0: never
    own           boolean  NOT NULL,
    origin        text     NOT NULL,
    subject       text     NOT NULL,
    owners        text     NOT NULL,
    status        text     NOT NULL,
    registered_at datetime NOT NULL,
    revision      integer  NOT NULL
);

CREATE TABLE conditions (
    name     text PRIMARY KEY,
    status   text     NOT NULL,
    reason   text     NOT NULL,
    since    datetime NOT NULL,
    until    datetime,
    revision integer  NOT NULL
) WITHOUT ROWID;

CREATE TABLE images (
    name          text PRIMARY KEY,
    digest        text     NOT NULL,
    size          integer  NOT NULL,
    unpacked_size integer  NOT NULL,
    entries       integer  NOT NULL,
    boot          boolean  NOT NULL,
    source        text     NOT NULL,
    imported_at   datetime NOT NULL,
    revision      integer  NOT NULL
) WITHOUT ROWID;

CREATE TABLE changes (
    revision          integer PRIMARY KEY,
    batch             text     NOT NULL,
    at                datetime NOT NULL,
    kind              text     NOT NULL,
    object_id         text     NOT NULL,
    object            text     NOT NULL,
    deleted           boolean  NOT NULL,
    previous_revision integer  NOT NULL,
    previous_status   text     NOT NULL,
    previous          text,
    status            text     NOT NULL,
    reason            text     NOT NULL,
    actor             text     NOT NULL,
    actor_key         text     NOT NULL,
    actor_addr        text     NOT NULL
);

-- Ids are unique across kinds, and whoever asks by id does not know the kind.
CREATE INDEX changes_object ON changes (object_id, revision);

CREATE TABLE access_keys (
    id           text PRIMARY KEY,
    name         text     NOT NULL,
    role         text     NOT NULL,
    scope        text     NOT NULL,
    node_uid     text, -- no reference: the node comes after its key
    node_role    text     NOT NULL,
    parent       text     NOT NULL,
    hash         text     NOT NULL,
    secret       integer  NOT NULL,
    former_hash  text     NOT NULL,
    former_until datetime,
    created_at   datetime NOT NULL,
    created_by   text     NOT NULL,
    expires_at   datetime,
    revoked_at   datetime,
    last_used_at datetime,
    revision     integer  NOT NULL
) WITHOUT ROWID;

CREATE TABLE join_tokens (
    id         text PRIMARY KEY,
    hash       text     NOT NULL,
    role       text     NOT NULL,
    labels     text,
    uses       integer  NOT NULL,
    used       text     NOT NULL,
    created_at datetime NOT NULL,
    created_by text     NOT NULL,
    expires_at datetime NOT NULL,
    revision   integer  NOT NULL
) WITHOUT ROWID;

CREATE TABLE audit (
    id      integer PRIMARY KEY AUTOINCREMENT, -- never reused: a page's cursor is one
    at      datetime NOT NULL,
    key     text     NOT NULL,
    name    text     NOT NULL,
    addr    text     NOT NULL,
    action  text     NOT NULL,
    target  text     NOT NULL,
    outcome text     NOT NULL,
    reason  text     NOT NULL,
    count   integer  NOT NULL
);

CREATE INDEX audit_at ON audit (at);

CREATE TABLE requests (
    principal  text     NOT NULL,
    request_id text     NOT NULL,
    hash       text     NOT NULL,
    object_id  text     NOT NULL,
    at         datetime NOT NULL,
    PRIMARY KEY (principal, request_id)
) WITHOUT ROWID;

CREATE INDEX requests_at ON requests (at);
