// Package httpfence fences an HTTP service: callers that hold a lock send their stamp in a header,
// and the service refuses with 412 what comes from an old holder.
//
// The caller wraps its transport, and gives each write a stamp of its own:
//
//	http.DefaultClient.Transport = httpfence.Transport{}
//	ctx = fence.WithStamp(ctx, stamps.Next())
//	response, err := http.DefaultClient.Do(request.WithContext(ctx))
//	…
//	if err := httpfence.Refused(response); err != nil { // a *fence.StaleError
//
// The service wraps the handlers that write:
//
//	fenced, err := httpfence.New(httpfence.Config{
//		Store:     boltfence.Store(db),                                     // or a guard's Store, or a database's
//		Name:      func(r *http.Request) string { return r.PathValue("id") }, // what the mark belongs to
//		Unstamped: httpfence.RefuseUnstamped,
//	})
//	mux.Handle("PUT /report/{id}", fenced(handler))
//
// A handler runs inside the store's step: it writes through what its context carries (boltfence.Tx,
// say), and with an answer of 400 or more, or a panic, it has written nothing. Its answer is kept
// back until the store has confirmed. A request's body is read before the step begins: a caller
// that is suspended in the middle of sending it keeps nobody waiting.
//
// Only methods that write are compared: GET, HEAD, OPTIONS and TRACE pass.
//
// What it cannot guarantee: what a handler writes beside the store's step is not fenced: a guard in
// memory serialises the handlers of one process, and after a restart has seen nothing, so a service
// of several processes needs a database's store. What a handler sends on to other services must
// carry the stamp on (fence.StampFrom finds it in the request's context). A new holder's reading is
// not compared, so until its first write arrives a late one of the old holder is accepted. The
// stamp proves nothing about who sent it: authenticate callers.
package httpfence
