-- The two users of the database, for psql. The owner has the tables and migrates them; the
-- service can change no table, and of the audit log no row:
--
--   relavium-serve migrate --role relavium     as relavium_owner
--   relavium-serve serve                       as relavium
--
-- migrate grants the service what it needs at each version. It comes to
--
--   grant usage on schema relavium to relavium;
--   grant select, insert, update, delete on all tables in schema relavium to relavium;
--   grant usage on all sequences in schema relavium to relavium;
--   revoke update, delete on relavium.audit from relavium;
--
-- and to the same for the tables of DBOS in relavium_dbos. Entries of the audit log that
-- are too old are the owner's to delete:
--
--   delete from relavium.audit where at < extract(epoch from now() - interval '400 days') * 1000;
--
-- Here the owner is whom the database server was set up with, and connected.
\set password `cat /run/secrets/service-password`
create role relavium login nosuperuser nocreatedb nocreaterole connection limit 100 password :'password';
revoke all on database relavium from public;
grant connect on database relavium to relavium;
revoke all on schema public from public;
