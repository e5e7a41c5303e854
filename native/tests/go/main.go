// Inserts jobs of one user with River's client for Go. Arguments: the database's URL, the user's id, how many.
package main

import (
	"context"
	"log"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

type analyze struct {
	UserID string `json:"user_id"`
	N      int    `json:"n"`
}

func (analyze) Kind() string { return "analysis:analyze" }

func main() {
	jobs, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var params []river.InsertManyParams
	for n := range jobs {
		params = append(params, river.InsertManyParams{
			Args:       analyze{UserID: os.Args[2], N: n},
			InsertOpts: &river.InsertOpts{Queue: "analysis_default"},
		})
	}
	if _, err := client.InsertMany(ctx, params); err != nil {
		log.Fatal(err)
	}
}
