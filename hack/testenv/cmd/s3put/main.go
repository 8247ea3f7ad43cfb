// Command s3put creates a bucket where it is missing and uploads files to it
// through the S3 API. Files copied into the gateway's folder show up as objects
// too, but without an ETag, and a Flux Bucket with such an object fails.
package main

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

func main() {
	remove := flag.Bool("prune", false, "remove objects that are not among the files")
	flag.Parse()
	if flag.NArg() < 1 || flag.NArg() > 2 {
		fmt.Fprintln(os.Stderr, `usage: s3put [-prune] BUCKET [FOLDER|FILE]
Reads TESTENV_S3_ENDPOINT, TESTENV_S3_ACCESS_KEY and TESTENV_S3_SECRET_KEY.`)
		os.Exit(2)
	}
	if err := run(context.Background(), flag.Arg(0), flag.Arg(1), *remove); err != nil {
		fmt.Fprintln(os.Stderr, "s3put:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bucket, path string, prune bool) error {
	endpoint := strings.TrimPrefix(os.Getenv("TESTENV_S3_ENDPOINT"), "http://")
	client, err := minio.New(endpoint, &minio.Options{
		Creds:  credentials.NewStaticV4(os.Getenv("TESTENV_S3_ACCESS_KEY"), os.Getenv("TESTENV_S3_SECRET_KEY"), ""),
		Region: "us-east-1",
	})
	if err != nil {
		return err
	}
	exists, err := client.BucketExists(ctx, bucket)
	if err != nil {
		return err
	}
	if !exists {
		if err := client.MakeBucket(ctx, bucket, minio.MakeBucketOptions{Region: "us-east-1"}); err != nil {
			return err
		}
	}

	sent := map[string]bool{}
	if path != "" {
		files, err := list(path)
		if err != nil {
			return err
		}
		for key, file := range files {
			if _, err := client.FPutObject(ctx, bucket, key, file, minio.PutObjectOptions{}); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			sent[key] = true
		}
	}
	if !prune {
		return nil
	}
	for object := range client.ListObjects(ctx, bucket, minio.ListObjectsOptions{Recursive: true}) {
		if object.Err != nil {
			return object.Err
		}
		if sent[object.Key] {
			continue
		}
		if err := client.RemoveObject(ctx, bucket, object.Key, minio.RemoveObjectOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// list maps object keys to the files that become them.
func list(path string) (map[string]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return map[string]string{filepath.Base(path): path}, nil
	}
	files := map[string]string{}
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		key, err := filepath.Rel(path, file)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(key)] = file
		return nil
	})
	return files, err
}
