"""Pipeline parallelism: a schedule is a table made on the host; one executor runs any table."""
