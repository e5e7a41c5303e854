// Another program's River client next to Weir. `migrate N` migrates River's tables to a version. `run` leads and works its
// own queue until its standard input ends. It also works Weir's kinds, or only registers them.
package main

import (
	"context"
	"flag"
	"io"
	"log"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// Any job's arguments; its kinds are its aliases.
type anything struct{}

var kinds []string

func (anything) Kind() string          { return "beside:work" }
func (anything) KindAliases() []string { return kinds }

type worker struct {
	river.WorkerDefaults[anything]
}

func (worker) Work(context.Context, *river.Job[anything]) error { return nil }

func main() {
	url := flag.String("url", "", "the database")
	schema := flag.String("schema", "", "River's schema; default: the first schema in search_path")
	rescueAfter := flag.Duration("rescue-after", time.Hour, "a job that runs for longer is stuck")
	known := flag.String("kinds", "", "kinds of Weir's that this client knows, comma separated")
	flag.Parse()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, *url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	if flag.Arg(0) == "migrate" {
		version, err := strconv.Atoi(flag.Arg(1))
		if err != nil {
			log.Fatal(err)
		}
		migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Schema: *schema})
		if err != nil {
			log.Fatal(err)
		}
		opts := &rivermigrate.MigrateOpts{TargetVersion: version}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, opts); err != nil {
			log.Fatal(err)
		}
		return
	}
	if *known != "" {
		kinds = strings.Split(*known, ",")
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{})
	client, err := river.NewClient(driver, &river.Config{
		ID:                   "beside_" + strconv.Itoa(os.Getpid()),
		JobTimeout:           time.Second,
		Logger:               slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Queues:               map[string]river.QueueConfig{"beside": {MaxWorkers: 2}},
		RescueStuckJobsAfter: *rescueAfter,
		Schema:               *schema,
		Workers:              workers,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := client.Insert(ctx, anything{}, &river.InsertOpts{Queue: "beside"}); err != nil {
		log.Fatal(err)
	}
	// The parent has ended, or has closed the pipe.
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := client.Stop(ctx); err != nil {
		log.Fatal(err)
	}
}
