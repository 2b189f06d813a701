package certificates

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize bounds the objects of a list that are in memory at the same time.
const pageSize = 500

// eachPage lists the objects of this set page by page, into a new list each, and calls visit for
// it. visit sees an object again when the list cannot be continued: it then comes in one piece.
// That is so after the snapshot has expired, and with a cache as client.
func eachPage[L client.ObjectList](ctx context.Context, c *Certificates, newList func() L, visit func(L)) error {
	for next := ""; ; {
		page := newList()
		err := c.client.List(ctx, page, append(c.inSet(), client.Limit(pageSize), client.Continue(next))...)
		if err != nil && next != "" {
			page = newList()
			err = c.client.List(ctx, page, c.inSet()...)
			page.SetContinue("")
		}
		if err != nil {
			return err
		}
		visit(page)
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}
