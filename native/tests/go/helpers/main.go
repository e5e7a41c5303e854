// A test of a program with the helpers of weirtest.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-queue/weir/clients/go"
	"github.com/weir-queue/weir/clients/go/weirtest"
)

// test stands for a testing.T.
type test struct{ cleanup []func() }

func (t *test) Helper()               {}
func (t *test) Cleanup(do func())     { t.cleanup = append(t.cleanup, do) }
func (t *test) Fatal(failures ...any) { log.Fatal(failures...) }

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	must(err)
	defer pool.Close()
	var t test
	client := weir.Client{}
	tx := weirtest.Begin(&t, pool)
	limit := int64(2)
	must(weirtest.SetQuota(ctx, client, tx, "anne", "analysis", &limit))
	for number := range 3 {
		submitted, err := client.SubmitTx(ctx, tx, weir.Job{Subject: "anne", Service: "analysis", Args: map[string]int{"number": number}})
		must(err)
		fmt.Println(submitted.Outcome)
	}
	ran, err := weirtest.RunQueued(ctx, client, tx, []string{"analysis_priority", "analysis_default"},
		func(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow) (any, *int64, error) {
			_, err := tx.Exec(ctx, "INSERT INTO results (number) VALUES ($1)", len(job.EncodedArgs))
			if err == nil && job.ID%2 == 0 {
				err = errors.New("it fails")
			}
			return "done", nil, err
		})
	must(err)
	for _, one := range ran {
		fmt.Println(one.Output, one.Err)
	}
	var results, jobs int
	must(tx.QueryRow(ctx, "SELECT (SELECT count(*) FROM results), (SELECT count(*) FROM river_job)").Scan(&results, &jobs))
	fmt.Println(results, jobs)
	for _, do := range t.cleanup {
		do()
	}
}
