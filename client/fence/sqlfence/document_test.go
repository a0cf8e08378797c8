//go:build linux

package sqlfence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

// documented gives the statements of the block that begins with this comment.
func documented(t *testing.T, title string) []string {
	t.Helper()
	document, err := os.ReadFile("../../../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(document), "```sql\n-- "+title+"\n")
	block, _, ended := strings.Cut(block, "```")
	if !found || !ended {
		t.Fatalf("docs/fencing.md has no SQL titled %q", title)
	}
	var statements []string
	for statement := range strings.SplitSeq(block, ";") {
		if statement = strings.TrimSpace(statement); statement != "" {
			statements = append(statements, statement)
		}
	}
	return statements
}

// run runs them with their parameters written in, and gives how many rows the last one has changed.
func run(t *testing.T, tx *sql.Tx, statements []string, parameters ...string) int64 {
	t.Helper()
	var changed int64
	for _, statement := range statements {
		result, err := tx.Exec(strings.NewReplacer(parameters...).Replace(statement))
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		if changed, err = result.RowsAffected(); err != nil {
			t.Fatal(err)
		}
	}
	return changed
}

// TestDocumentedSQL: the SQL for teams that use no kit is the rule too, and goes together with the kit.
func TestDocumentedSQL(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		name := strings.TrimSuffix(d.name, "FoundRows")
		if d.dialect == sqlfence.MySQL {
			name = "MySQL"
		}
		db, guard := account(t, d)
		transact := func(act func(*sql.Tx) error) {
			t.Helper()
			if err := inTx(db, nil, act); err != nil {
				t.Fatal(err)
			}
		}
		transact(func(tx *sql.Tx) error {
			run(t, tx, []string{"DROP TABLE pawl_marks", "DROP TABLE pawl_done", "DROP TABLE IF EXISTS report", "CREATE TABLE report (id INTEGER PRIMARY KEY, body VARCHAR(100))",
				"INSERT INTO report (id) VALUES (7)"})
			run(t, tx, documented(t, name+": schema"))
			run(t, tx, documented(t, "all: columns"))
			return nil
		})
		sqls := map[bool][2][]string{}
		for shared, mode := range map[bool]string{false: "exclusive", true: "shared"} {
			sqls[shared] = [2][]string{documented(t, "all: row, "+mode), documented(t, name+": check, "+mode)}
		}
		random := rand.New(rand.NewPCG(7, 7))
		var newest fence.Stamp
		for i := range 300 {
			stamp := randomStamp(random, 1+uint64(i)/30)
			want := int64(1)
			if stamp.Allowed(newest) != nil {
				want = 0
			}
			transact(func(tx *sql.Tx) error {
				for way, statements := range sqls[stamp.Shared] {
					got := run(t, tx, statements, ":id", "7", ":body", fmt.Sprintf("'body %d'", i), ":name", "'x'",
						":token", fmt.Sprint(stamp.Token), ":sequence", fmt.Sprint(stamp.Sequence))
					// MySQL's drivers count what was changed, unless told otherwise, as the document says.
					unchanged := d.name == "MariaDB" && way == 1 && stamp == newest && want == 1
					if got != want && !unchanged {
						t.Fatalf("%v after %v, way %d: %d rows", stamp, newest, way, got)
					}
				}
				return nil
			})
			if want == 1 && stamp.Above(newest) {
				newest = stamp
			}
		}
		if seen, err := guard.Newest(t.Context(), db, "x"); err != nil || seen != newest {
			t.Errorf("the kit reads the mark %v, not %v: %v", seen, newest, err)
		}
		transact(func(tx *sql.Tx) error {
			restored := documented(t, "all: after a restore")
			if n := run(t, tx, restored, ":token", "1000"); n != 1 {
				t.Errorf("%d marks were set", n)
			}
			if err := guard.Check(t.Context(), tx, "x", exclusive(1000, fence.MaxSequence)); !errors.Is(err, fence.ErrStale) {
				t.Errorf("after a restore: %v", err)
			}
			return guard.Check(t.Context(), tx, "x", exclusive(1001, 1))
		})
		transact(func(tx *sql.Tx) error {
			once := documented(t, name+": once")
			if first, second := run(t, tx, once, ":operation", "'o'"), run(t, tx, once, ":operation", "'o'"); first != 1 || second != 0 {
				t.Errorf("once changed %d rows, then %d", first, second)
			}
			if done, err := guard.Once(t.Context(), tx, "o"); err != nil || !done {
				t.Errorf("the kit does not see it: %t %v", done, err)
			}
			if n := run(t, tx, documented(t, "all: forget"), ":before", "1"); n != 0 {
				t.Errorf("%d were forgotten", n)
			}
			if n := run(t, tx, documented(t, "all: forget"), ":before", "99999999999"); n != 1 {
				t.Errorf("%d were forgotten", n)
			}
			return nil
		})
	})
}
