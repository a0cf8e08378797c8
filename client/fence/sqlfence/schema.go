package sqlfence

import (
	"context"
	"fmt"
)

// Schema gives the statements that make the guard's tables, for those who keep theirs in migrations. They do nothing when
// the tables are there.
func (g *Guard) Schema() []string {
	// A name is compared byte by byte: with MySQL's collations "a" would be "A" and "a ".
	name, end := "TEXT", ""
	if g.dialect == MySQL {
		name, end = "VARBINARY(512)", " ENGINE=InnoDB" // the only engine of the common ones with transactions
	}
	return []string{
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (%s %s NOT NULL PRIMARY KEY, %s BIGINT NOT NULL, %s BIGINT NOT NULL)%s",
			g.marks, g.name, name, g.token, g.sequence, end),
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (%s %s NOT NULL PRIMARY KEY, done_at BIGINT NOT NULL)%s", g.done, g.name, name, end),
	}
}

// Create makes the tables.
func (g *Guard) Create(ctx context.Context, db Runner) error {
	for _, statement := range g.Schema() {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("making the tables of marks: %w", err)
		}
	}
	return nil
}
