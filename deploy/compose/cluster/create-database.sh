# Creates the database of Redrive and its owner, which is not a superuser. The image's entrypoint sources this file once, when
# the data directory is empty.
psql --no-psqlrc --set=ON_ERROR_STOP=1 --set=password="$(cat /run/keys/redrive.password)" --username postgres <<'SQL'
CREATE ROLE redrive LOGIN PASSWORD :'password';
CREATE DATABASE redrive OWNER redrive;
SQL
