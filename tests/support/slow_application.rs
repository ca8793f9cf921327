//! An application whose work takes time, and that counts concurrent requests.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Answers with 200 after the work is done. Requests for `/hold` are held until [`SlowApplication::finish`]. Any other
/// request takes the milliseconds in its path: `/50`. It ends with the test process.
pub struct SlowApplication {
    pub address: SocketAddr,
    work: Arc<Work>,
}

#[derive(Default)]
struct Work {
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests in progress.
    under_way: Vec<Arc<TcpStream>>,
    most: usize,
    /// Number of times that held requests were finished.
    rounds: usize,
}

impl State {
    /// Removes requests whose clients have hung up.
    fn forget_cancelled(&mut self) {
        self.under_way.retain(|stream| {
            let mut byte = [0];
            matches!(stream.peek(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
    }
}

impl SlowApplication {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, work) = (listener.local_addr().unwrap(), Arc::<Work>::default());
        let shared = Arc::clone(&work);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let work = Arc::clone(&shared);
                thread::spawn(move || work.serve(stream));
            }
        });
        Self { address, work }
    }

    /// Returns the maximum number of concurrent requests since the last call.
    pub fn most_at_once(&self) -> usize {
        let mut state = self.work.state.lock();
        let most = std::mem::take(&mut state.most);
        state.most = 0;
        most
    }

    /// Returns the number of requests in progress.
    pub fn under_way(&self) -> usize {
        let mut state = self.work.state.lock();
        state.forget_cancelled();
        state.under_way.len()
    }

    /// Finishes the held requests.
    pub fn finish(&self) {
        self.work.state.lock().rounds += 1;
        self.work.finished.notify_all();
    }
}

impl Work {
    fn serve(&self, mut stream: TcpStream) {
        let mut request = [0; 8192];
        let length = stream.read(&mut request).unwrap_or(0);
        let request = String::from_utf8_lossy(request.get(..length).unwrap_or_default()).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default();
        stream.set_nonblocking(true).unwrap();
        let stream = Arc::new(stream);
        let mut state = self.state.lock();
        state.forget_cancelled();
        state.under_way.push(Arc::clone(&stream));
        state.most = state.most.max(state.under_way.len());
        let round = state.rounds;
        match path.trim_start_matches('/').parse() {
            Ok(millis) => {
                drop(state);
                thread::sleep(Duration::from_millis(millis));
                state = self.state.lock();
            }
            Err(_) => self.finished.wait_while(&mut state, |state| state.rounds == round),
        }
        // The request is removed before the client can know that it is done.
        state.under_way.retain(|known| !Arc::ptr_eq(known, &stream));
        drop(state);
        stream.set_nonblocking(false).unwrap();
        let _ = (&*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\napp");
    }
}
