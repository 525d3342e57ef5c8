"""SQL that nobody should run, for the tests of what runs it; ``{folder}`` holds the databases."""

_BOMB = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)"
_LETTERS = "'" + "a" * 90 + "b'"
_WILD = "%a" * 40 + "%c"

WRITES = {
    "delete": "DELETE FROM pupil",
    "delete in a with": "WITH t AS (SELECT 1) DELETE FROM pupil",
    "drop": "DROP TABLE pupil",
    "update": "UPDATE pupil SET grade = 0",
    "insert": "INSERT INTO pupil VALUES ('x', 'y', 1)",
    "replace": "REPLACE INTO pupil VALUES ('x', 'y', 1)",
    "insert in a recursive with": f"{_BOMB} INSERT INTO pupil SELECT 'x', 'y', x FROM t",
    "alter": "ALTER TABLE pupil RENAME TO gone",
    "create table": "CREATE TABLE mine (x)",
    "create temporary table": "CREATE TEMP TABLE mine AS SELECT * FROM pupil",
    "create trigger": "CREATE TRIGGER t AFTER INSERT ON pupil BEGIN DELETE FROM pupil; END",
    "create view": "CREATE VIEW v AS SELECT 1",
    "create index": "CREATE INDEX i ON pupil (name)",
    "create virtual table": "CREATE VIRTUAL TABLE f USING fts5(x)",
    "attach a new file": "ATTACH DATABASE '{folder}/new.sqlite' AS other",
    "detach": "DETACH DATABASE main",
    "vacuum": "VACUUM",
    "vacuum into a file": "VACUUM INTO '{folder}/copy.sqlite'",
    "reindex": "REINDEX",
    "analyze": "ANALYZE",
    "writable schema": "PRAGMA writable_schema = ON",
    "journal mode": "PRAGMA journal_mode = WAL",
    "user version": "PRAGMA user_version = 7",
    "savepoint": "SAVEPOINT s",
    "begin exclusive": "BEGIN EXCLUSIVE",
    "commit": "COMMIT",
    "update of the schema": "UPDATE sqlite_master SET sql = 'gone'",
    "second statement drops": "SELECT 1; DROP TABLE pupil",
    "second statement behind a comment": "SELECT 1 /* ; */ ; DELETE FROM pupil",
    "shell command": ".shell touch {folder}/new",
    "shell output": ".output {folder}/new",
}
FILES = {
    "load an extension": "SELECT load_extension('/lib/evil.so')",
    "write a file": "SELECT writefile('{folder}/new', 'x')",
    "read a file": "SELECT readfile('/etc/passwd')",
    "editor": "SELECT edit('x', 'vi')",
    "tokenizer pointer": "SELECT fts3_tokenizer('simple', x'4141414141414141')",
    "pragma as a table": "SELECT * FROM pragma_database_list",
    "pragma function": "SELECT * FROM pragma_table_info('pupil')",
    "pages of the file": "SELECT * FROM sqlite_dbpage",
    "file by name": "SELECT * FROM '/etc/passwd'",
}
# All of these run until they are stopped.
TIME = {
    "recursion without end": f"{_BOMB} SELECT count(*) FROM t",
    "recursion without end, rows kept": f"{_BOMB} SELECT max(x) FROM (SELECT x FROM t ORDER BY 1)",
    "cross join": "SELECT count(*) FROM pupil a, pupil b, pupil c, pupil d, pupil e, pupil f",
    "one long call": "SELECT instr(hex(zeroblob(400000)), hex(zeroblob(200000)) || 'x')",
    "correlated subqueries": (
        "SELECT (SELECT sum((SELECT count(*) FROM pupil c, pupil d, pupil g WHERE c.grade < b.grade"
        " AND d.grade < a.grade)) FROM pupil b, pupil e) FROM pupil a"
    ),
}
# These end in time or not, as the machine is fast.
MEMORY = {
    "sorted cross join": "SELECT a.name FROM pupil a, pupil b, pupil c, teacher d ORDER BY 1",
    "exponential pattern": f"SELECT {_LETTERS} LIKE '{_WILD}'",
    "exponential glob": f"SELECT {_LETTERS} GLOB '{_WILD.replace('%', '*')}'",
    "hex of a zeroblob": "SELECT hex(zeroblob(100000000))",
    "padded printf": "SELECT printf('%.*c', 100000000, 'x')",
    "random blob": "SELECT randomblob(1000000000)",
    "replace that doubles": "SELECT replace(hex(zeroblob(400000)), '0', 'xxxx')",
    "group_concat": f"{_BOMB} SELECT group_concat(hex(randomblob(1000))) FROM t",
    "many long values": f"{_BOMB} SELECT hex(zeroblob(400000)), x FROM t",
    "wide sort of long values": f"{_BOMB} SELECT hex(randomblob(100000)) FROM t ORDER BY 1",
    "aggregate json": f"{_BOMB} SELECT json_group_array(hex(randomblob(1000))) FROM t",
    "many columns": "SELECT " + ", ".join(["*"] * 400) + " FROM pupil",
}
PARSER = {
    "deep nesting": "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "deep subqueries": "SELECT * FROM (" * 500 + "SELECT 1" + ")" * 500,
    "long sum": "SELECT " + " + ".join(["1"] * 20000),
    "many unions": " UNION ALL ".join(["SELECT 1"] * 2000),
    "ten million letters": "SELECT '" + "x" * 10_000_000 + "'",
    "ten million brackets": "(" * 10_000_000,
    "nul bytes": "SELECT 1\0; DROP TABLE pupil",
    "nul first": "\0",
    "lone surrogate": "SELECT '\ud800'",
    "open quote": "SELECT 'never closed; DROP TABLE pupil",
    "open comment": "SELECT /* never closed",
    "no regular expressions": "SELECT 'aaaa' REGEXP '(a+)+b'",
    "only semicolons": ";;;;",
    "not SQL": "I cannot answer that.",
}
HOSTILE = WRITES | FILES | TIME | MEMORY | PARSER
# Of these the first statement is harmless, and runs.
HARMLESS_FIRST = {"second statement drops", "second statement behind a comment"}
