package httpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

func ExampleBind() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()

	server, err := httpserver.Bind(ctx, "127.0.0.1:0", http.NotFoundHandler(), httpserver.Options{MaxConnections: 512})
	if err != nil {
		fmt.Println(err)

		return
	}

	fmt.Println("ended with", server.Serve(ctx))
	// Output: ended with <nil>
}
