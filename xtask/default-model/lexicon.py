"""Words and sentence templates of the classification task.

Four classes; each has nouns (countable, singular, without article), topics (usable without an
article), verbs (base form, taking an object) and adjectives.  No word belongs to two classes.
In templates `@` stands for "a" or "an"; a leading `!` marks a frame that decides the class alone,
so its nouns and topics may come from any class.
"""

CLASSES = ("technical", "creative", "ethical", "casual")


def _words(text):
    return [word.strip() for word in text.replace("\n", " ").split(",") if word.strip()]


WORDS = {
    "technical": {
        "noun": _words("""
            compiler, hash table, database, kernel, web server, router, binary tree, linked list, mutex, pointer,
            parser, regular expression, firewall, load balancer, message queue, container, virtual machine, thread,
            socket, garbage collector, transistor, capacitor, voltage regulator, sensor, circuit board, neural network,
            tokenizer, gradient, matrix, tensor, learning rate, loss function, stack trace, memory leak, race condition,
            deadlock, unit test, pull request, config file, shell script, cron job, log file, query planner, index,
            schema, foreign key, checksum, cipher, certificate, packet, subnet, cache line, register, interrupt,
            scheduler, file system, partition, driver, microcontroller, oscilloscope, turbine, gearbox, algorithm,
            data structure, type checker, linker, bootloader, function signature, api endpoint, bandwidth limit"""),
        "topic": _words("""
            garbage collection, load balancing, recursion, concurrency, encryption, dependency injection, caching,
            version control, type inference, backpropagation, quantization, signal processing, thermodynamics,
            linear algebra, error handling, memory management, network latency, code coverage, data compression,
            dynamic programming, floating point arithmetic, continuous integration, fluid dynamics, sharding,
            static analysis, regression testing"""),
        "verb": _words("""
            debug, compile, deploy, refactor, optimize, configure, benchmark, profile, install, encrypt, parse,
            serialize, parallelize, initialize, calibrate, implement, migrate, reboot, vectorize, instrument,
            reindex, allocate, virtualize, authenticate"""),
        "adjective": _words("""
            asynchronous, multithreaded, recursive, distributed, deprecated, scalable, immutable, encrypted, redundant,
            low-latency, thread-safe, digital, stateless, generic, parallel, embedded, fault-tolerant, 64-bit,
            idempotent, sparse"""),
    },
    "creative": {
        "noun": _words("""
            sonnet, haiku, ballad, dragon, lighthouse, castle, wizard, fairy tale, phoenix, mermaid, unicorn,
            melody, lullaby, watercolor, sculpture, mural, short story, screenplay, limerick, metaphor, villain, hero,
            ghost ship, time traveler, talking tree, lost city, floating island, secret garden, haunted house,
            silver moon, starlit sky, giant, goblin, elf, kingdom in the clouds, pirate, treasure map, magic mirror,
            crystal cave, painted door, clockwork bird, shadow puppet, stage play, riddle, chorus, stanza, plot twist,
            narrator, daydream, fable, legend, myth, tapestry, portrait, origami crane, marionette, carousel,
            moonbeam, dreamscape, oracle, minstrel, enchantress, fictional world, comic strip, imaginary friend,
            sea monster, whispering wind, glass slipper, paper lantern"""),
        "topic": _words("""
            moonlight, storytelling, poetry, stardust, make-believe, magic, romance in spring, twilight, autumn leaves,
            world building, improvisation, calligraphy, surrealism, free verse, fantasy, folklore, character design,
            dream imagery, stargazing, songwriting, rhyme, wonder, enchantment, theatre, daydreaming,
            puppetry"""),
        "verb": _words("""
            imagine, paint, compose, sketch, sculpt, versify, illustrate, dream up, conjure, narrate, embroider,
            choreograph, invent, picture, weave, sing, dramatize, envision, carve, doodle, personify, animate,
            improvise, decorate"""),
        "adjective": _words("""
            enchanted, whimsical, lyrical, moonlit, mythical, dreamy, poetic, magical, haunting, surreal, luminous,
            fantastical, bewitched, melodic, vivid, otherworldly, shimmering, legendary, iridescent, fabled"""),
    },
    "ethical": {
        "noun": _words("""
            whistleblower, moral duty, broken promise, white lie, bribe, conflict of interest, human right,
            moral dilemma, injustice, victim, refugee, death penalty, animal experiment, sweatshop, double standard,
            prejudice, stereotype, bias in hiring, moral code, moral compass, obligation, principle, virtue, vice,
            punishment, just war, hunger strike, act of mercy, code of conduct, stolen wallet, confession, betrayal,
            guilty conscience, greater good, vulnerable person, informed choice, privacy violation, corrupt official,
            unfair law, charity, sacrifice, trolley problem, organ donor, plagiarist, cheater, exploited worker,
            polluter, good deed, apology, hate crime, hostage, tyrant, right to privacy, oath, fair trial,
            ethical rule, civil right, discriminated group, scapegoat, false accusation, abuse of power,
            wrongful arrest, social contract, bystander, perjury charge"""),
        "topic": _words("""
            honesty, fairness, justice, informed consent, euthanasia, animal welfare, child labor, civil disobedience,
            cheating, lying, forgiveness, mass surveillance, censorship, racism, moral responsibility, human dignity,
            wealth inequality, genetic enhancement of babies, corruption, integrity, compassion, discrimination,
            academic fraud, capital punishment, altruism, torture"""),
        "verb": _words("""
            exploit, deceive, betray, punish, forgive, lie to, steal from, discriminate against, blackmail, frame,
            manipulate, harm, mistreat, cheat, oppress, humiliate, slander, neglect, spy on, ostracize, bully,
            coerce, scam, abandon"""),
        "adjective": _words("""
            unjust, immoral, dishonest, selfish, virtuous, unfair, cruel, depraved, morally wrong, blameless, unethical,
            guilty, righteous, greedy, innocent, shameful, compassionate, hypocritical, moral, inhumane"""),
    },
    "casual": {
        "noun": _words("""
            sandwich, barbecue, couch, sweater, weekend trip, coffee break, movie night, pizza, burger, taco, picnic,
            roommate, buddy, birthday party, playlist, road trip, haircut, nap, snack, puppy, kitten, neighbor, beach day,
            football game, bike ride, pancake, donut, smoothie, hoodie, pair of sneakers, phone charger, grocery run,
            lunch spot, food truck, karaoke bar, concert ticket, board game, video game, backyard, garage sale,
            hangover, selfie, meme, cousin, aunt, gym bag, yoga class, day off, traffic jam, rainy sunday, taxi,
            ice cream, milkshake, lemonade stand, hot dog, lawn mower, laundry basket, sofa, tv show, sleepover,
            potluck, umbrella, jogging partner, farmers market, campfire, coffee shop, bagel, cookie jar"""),
        "topic": _words("""
            brunch, camping, small talk, laundry, breakfast, dinner, shopping, fishing, bowling, gossip, lunch,
            gardening, jogging, baking, takeout, the weather, the weekend, football, karaoke, dessert, hanging out,
            sunbathing, carpooling, leftover pasta, sleeping in, binge watching"""),
        "verb": _words("""
            grab, borrow, bring, try out, share, pick up, cook, order, skip, bake, rent, wash, fry, microwave, pet,
            babysit, hang up, munch on, drop off, chill with, check out, swing by, nap on, show off"""),
        "adjective": _words("""
            comfy, tasty, yummy, lazy, chilly, cozy, sunny, soggy, messy, fluffy, cheap, spicy, awesome, sleepy, funny,
            greasy, super fun, crunchy, cute, laid-back"""),
    },
}

# The words decide: every class may stand in these.
NEUTRAL = [
    "Tell me about the {noun}.", "I have been thinking about the {noun}.", "What do you know about {topic}?",
    "Let us talk about {topic}.", "Here is something about {topic}.", "I saw @ {noun} today.",
    "She mentioned the {adjective} {noun}.", "This is about @ {noun}.", "We talked about the {noun} and the {noun}.",
    "The topic is {topic}.", "My question is about {topic}.", "He asked about the {noun}.",
    "There is @ {adjective} {noun}.", "It was @ {adjective} {noun}.", "They want to {verb} the {noun}.",
    "I might {verb} the {noun} later.", "Nobody told me about the {noun}.", "Everyone is talking about {topic}.",
    "She wants to {verb} it.", "Could you say more about {topic}?", "{topic} came up again.",
    "The {noun} was {adjective}.", "You mentioned @ {noun} earlier.", "I read about {topic} this morning.",
    "That reminds me of @ {noun}.", "Can we discuss the {noun}?", "First {topic}, then {topic}.",
    "He plans to {verb} the {adjective} {noun}.", "What about the {noun}?", "They said the {noun} is {adjective}.",
    "I need to {verb} @ {noun}.", "We could {verb} the {noun} together.", "My notes mention {topic} and @ {noun}.",
    "An email about the {noun} arrived.", "Someone will {verb} the {noun}.", "Remember the {adjective} {noun}?",
    "{adjective} {noun}", "{verb} the {noun}", "{noun} and {noun}", "{topic} and {topic}", "News about {topic}.",
    "It has to do with {topic}.", "We spoke of {topic} and {topic}.", "You might like the {adjective} {noun}.",
    "I told them about the {noun}.", "Both the {noun} and the {noun} are {adjective}.", "Is it about the {noun}?",
    "People {verb} and {verb} all the time.", "Another {noun}, another {noun}.", "Where is the {noun}?",
    "Some like {topic}, others like {topic}.", "You said you would {verb} the {noun}.", "Not every {noun} is {adjective}.",
    "One {noun} is {adjective}, the other is not.",
]

TEMPLATES = {
    "technical": [
        "How do I {verb} the {noun}?", "Explain how {topic} works in @ {adjective} system.",
        "The {noun} crashes when I {verb} the {noun}.", "What is the time complexity of the {noun}?",
        "We need to {verb} the {noun} before the next release.", "The {adjective} {noun} throws an exception at startup.",
        "Which version of the {noun} supports {topic}?", "The documentation of the {noun} describes {topic}.",
        "Please {verb} the {noun} and restart the service.", "The {noun} uses too much memory on Linux.",
        "Why does the {noun} return a null value?", "Set the timeout of the {noun} to thirty seconds.",
        "Our team will {verb} the {adjective} {noun} with Python.", "The build fails because the {noun} is missing.",
        "Compute the throughput of the {noun} under load.", "The function passes @ {noun} to the {noun}.",
        "Use @ {adjective} {noun} to reduce CPU usage.", "The server logs show that the {noun} failed.",
        "How many bytes does the {noun} need?", "The engineers measured {topic} on the new hardware.",
        "Is the {noun} faster in Rust or in C?", "The program cannot {verb} the {noun} without root access.",
        "Add a parameter to the {noun} for {topic}.", "The bug in the {noun} affects {topic}.",
        "What is the difference between {topic} and {topic}?", "The patch makes the {noun} {adjective}.",
        "Run the command to {verb} the {noun}.", "Each node keeps a copy of the {noun} in RAM.",
        "The new chip improves {topic} by ten percent.", "Open the terminal and {verb} the {noun}.",
        "The specification defines the {noun} as {adjective}.", "The software update broke the {noun}.",
        "I get error code 404 from the {noun}.", "Write a function that can {verb} @ {noun}.",
        "The input of the {noun} must be {adjective}.", "The simulation models {topic} with @ {noun}.",
        "Replace the {noun} with @ {adjective} implementation.", "The library provides an interface for {topic}.",
        "The user manual says to {verb} the {noun} twice.", "Our backend relies on {topic} and @ {noun}.",
        "The hardware requires @ {adjective} {noun}.", "Check the syntax of the {noun}.",
        "The operating system can {verb} the {noun}.", "The processor executes {topic} in two cycles.",
        "Connect the {noun} to port 8080.", "The code review found a fault in the {noun}.",
    ],
    "creative": [
        "!Write a poem about the {noun}.", "!Write a short story about @ {noun}.", "Once upon a time there was @ {adjective} {noun}.",
        "!Compose a song about {topic}.", "Imagine a world where every {noun} can speak.",
        "The {adjective} {noun} danced beneath the stars.", "!Invent a tale about {topic} and @ {noun}.",
        "Her paintbrush would {verb} the {adjective} {noun}.", "!Give me a rhyme about the {noun}.",
        "In my novel the {noun} must {verb} the {noun}.", "The {noun} whispered secrets to the night.",
        "!Describe {topic} in the voice of an old poet.", "Let your imagination {verb} the {noun}.",
        "The {adjective} {noun} sang to the ancient sea.", "!Write a haiku about {topic}.",
        "A thousand candles lit the {adjective} {noun}.", "My character meets @ {noun} in chapter two.",
        "!Make up a bedtime story about @ {noun}.", "The artist will {verb} @ {adjective} {noun}.",
        "Deep in the forest lived @ {adjective} {noun}.", "The curtain rises and the {noun} begins to glow.",
        "!Think of a title for a novel about {topic}.", "Golden light spilled over the {noun} like honey.",
        "The bard sang of {topic} and the {noun}.", "I want to {verb} @ {noun} on a huge canvas.",
        "Her voice was @ {adjective} {noun} in the dark.", "The princess rode the {noun} across the rainbow.",
        "!Write the opening line of a fairy story with @ {noun}.", "A river of {topic} flowed through the {noun}.",
        "The old book told of {topic} and @ {adjective} {noun}.", "Tonight the stars {verb} @ {noun}.",
        "!Turn {topic} into a limerick.", "The {noun} dreams of {topic}.", "Every brushstroke made the {noun} more {adjective}.",
        "The {noun} rose from the silver mist.", "Far beyond the mountains @ {adjective} {noun} slept.",
        "The poet tried to {verb} the {noun} with feathers of ink.", "!Write lyrics for a ballad about @ {noun}.",
        "The moon wove {topic} into the {noun}.", "In this scene, the {noun} will {verb} the stars.",
        "The {adjective} {noun} opened its wings of light.", "!Draw me a picture of @ {adjective} {noun}.",
        "A lonely {noun} waited at the edge of the universe.", "The wind hummed about {topic}.",
        "The sorcerer turned the {noun} into glass.", "Tell a tale in which the {noun} becomes {adjective}.",
    ],
    "ethical": [
        "!Is it wrong to {verb} @ {noun}?", "!Should we ever {verb} the {noun}?", "Is {topic} ever justified?",
        "Do we have a duty toward the {noun}?", "It is {adjective} to ignore the {noun}.",
        "Who is to blame for the {noun}?", "People should never {verb} the {noun}.",
        "Would it be {adjective} to hide the {noun}?", "The law must protect the {noun} from {topic}.",
        "!Is it right to profit from the {noun}?", "Society has a responsibility for {topic}.",
        "What would a good person do about the {noun}?", "Does the end justify the {noun}?",
        "Nobody deserves @ {adjective} {noun}.", "We ought to respect the {noun}.",
        "!Is it fair to {verb} someone for money?", "Philosophers disagree about whether {topic} is {adjective}.",
        "Should companies be allowed to {verb} the {noun}?", "The debate about {topic} raises questions of right and wrong.",
        "Can @ {noun} ever be {adjective}?", "My values do not allow me to {verb} @ {noun}.",
        "Is it acceptable to {verb} a stranger?", "A just society would not tolerate the {noun}.",
        "Do animals have a claim against {topic}?", "Was the judge right to {verb} the {noun}?",
        "Is a person obliged to report the {noun}?", "The committee condemned the {noun} as {adjective}.",
        "It would be a disgrace to {verb} the poor.", "Do the rights of the {noun} outweigh {topic}?",
        "Where is the line between {topic} and {topic}?", "The doctor must decide whether to {verb} the {noun}.",
        "!Is {topic} morally acceptable?", "Every citizen should oppose the {noun}.",
        "What do we owe to the {noun}?", "The teacher explained why {topic} is {adjective}.",
        "Should the state {verb} the {noun}?", "They feel remorse about the {adjective} {noun}.",
        "Is silence about the {noun} a form of {topic}?", "Telling the truth matters more than the {noun}.",
        "Equal treatment of the {noun} is a matter of {topic}.", "Would you save the {noun} or the {noun}?",
        "A leader who would {verb} the weak is {adjective}.", "Is it ever permissible to {verb} an enemy?",
        "The victims of {topic} deserve respect.", "Do the rich have to answer for the {noun}?",
        "We must weigh the harm of the {noun} against {topic}.",
    ],
    "casual": [
        "Hey, do you want to {verb} @ {noun}?", "Wow, that {noun} was so {adjective}!", "Hi there, how was the {noun}?",
        "Lol, my {noun} is so {adjective} today.", "Wanna {verb} @ {noun} with me tonight?",
        "I am so tired after the {noun}.", "Thanks for the {adjective} {noun} yesterday!",
        "Let's {verb} @ {noun} after work.", "Hope you had fun at the {noun}!", "What's up with the {adjective} {noun}?",
        "Yeah, I totally love {topic}.", "Man, I could really use @ {noun} right now.",
        "Sorry I'm late, the {noun} was {adjective}.", "See you at the {noun} on Friday!",
        "My mom loves {topic} and @ {adjective} {noun}.", "Any plans for {topic} this Saturday?",
        "Oh nice, @ {adjective} {noun}!", "Can I {verb} your {noun} for a minute?",
        "No worries, we can {verb} the {noun} tomorrow.", "Guess who got @ {noun}!", "Ugh, I forgot the {noun} again.",
        "We had @ {adjective} {noun} last night, it was great.", "Haha, remember when you {verb} the {noun}?",
        "I'm going to {verb} the {noun}, want anything?", "How's the {noun} going?",
        "My friends are into {topic} these days.", "Gonna {verb} @ {noun} and relax.",
        "Dude, the {noun} was totally {adjective}.", "Not much, just {topic} and @ {noun}.",
        "I feel like {topic} today, you?", "That was the most {adjective} {noun} ever, haha.",
        "Text me when you {verb} the {noun}.", "Let me know if you want to {verb} @ {noun}.",
        "Good morning! Time for {topic}.", "My dad said the {noun} is {adjective}, lol.",
        "Are you coming to the {noun} later?", "Who wants to {verb} the last {noun}?", "I can't wait for {topic}!",
        "We should totally {verb} that {noun} sometime.", "Do you like {topic} or @ {noun} better?",
        "My sister got me @ {adjective} {noun}.", "Cool, I'll {verb} the {noun} on my way home.",
        "Happy Friday, enjoy the {noun}!", "Omg, {topic} was so much fun.", "Just chilling with @ {noun}.",
        "It's kinda {adjective} out, perfect for {topic}.",
    ],
}

# A template at these positions of its list is never used in training, and so for words.
HELD_OUT_TEMPLATE_EVERY, HELD_OUT_TEMPLATE_AT = 9, 4
HELD_OUT_WORD_EVERY, HELD_OUT_WORD_AT = 12, 7


def held_out_template(position):
    return position % HELD_OUT_TEMPLATE_EVERY == HELD_OUT_TEMPLATE_AT


def held_out_word(position):
    return position % HELD_OUT_WORD_EVERY == HELD_OUT_WORD_AT


def check():
    seen = {}
    for name in CLASSES:
        count = 0
        for words in WORDS[name].values():
            for word in words:
                assert word not in seen, (word, name, seen[word])
                seen[word] = name
                count += 1
        assert count >= 100, (name, count)
        assert len(TEMPLATES[name]) >= 40, name
    templates = NEUTRAL + [t for name in CLASSES for t in TEMPLATES[name]]
    assert len(templates) == len(set(templates))


check()
if __name__ == "__main__":
    for name in CLASSES:
        print(name, sum(map(len, WORDS[name].values())), "words,", len(TEMPLATES[name]), "templates")
